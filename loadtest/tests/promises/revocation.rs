//! A3: how long a right lives after it was taken away.
