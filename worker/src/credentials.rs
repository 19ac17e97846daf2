//! Credentials: `${NAME}` in a server's settings, read from the worker's own environment.
//!
//! Only settings that the configuration file owns are expanded; what was written over the admin API is taken literally,
//! so that no tenant can read the worker's environment.

use rollcall_shared::config::{Environment, expand};
use rollcall_shared::secret::Secret;
use rollcall_shared::tenants::Owner;
use rollcall_shared::wire::{Failure, Reason};

/// The value to send. A variable that is not set is a failure that names it in the log.
pub(crate) fn resolve(value: &Secret, owner: Owner, environment: &Environment) -> Result<Secret, Failure> {
    match owner {
        Owner::Store => Ok(value.clone()),
        Owner::File => expand(value.expose(), |name| environment.get(name).map(str::to_owned))
            .map(Secret::new)
            .map_err(|what| Failure::unsent(Reason::CredentialMissing, what)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_files_settings_are_expanded() {
        let environment = Environment::from_pairs([("TOKEN", "t")]);
        let value = Secret::new("Bearer ${TOKEN}");
        let text = |owner| resolve(&value, owner, &environment).map(|s| s.expose().to_owned());
        assert_eq!(text(Owner::File).as_deref(), Ok("Bearer t"));
        assert_eq!(text(Owner::Store).as_deref(), Ok("Bearer ${TOKEN}"));
        let missing = resolve(&Secret::new("${NOPE}"), Owner::File, &environment);
        assert!(missing.is_err_and(|f| f.reason == Reason::CredentialMissing && f.detail.contains("NOPE")));
    }
}
