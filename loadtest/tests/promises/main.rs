//! What Rollcall promises to the people who run it, one test a promise: real processes, a real Redis, upstreams that
//! remember what reached them. Figures are printed; run with `--nocapture` to read them.
//!
//! `ROLLCALL_PROMISES_SCALE` multiplies the sizes. One promise is tested at a time: they measure.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::too_many_lines,
    reason = "a test ends where it fails, and measures real time"
)]

mod cases;
mod claims;
mod durability;
mod isolation;
mod peers;
mod revocation;
mod scene;

/// README names only promises that are tested here.
#[test]
fn every_promise_of_the_readme_has_its_test() {
    const README: &str = include_str!("../../../README.md");
    const TESTS: [&str; 4] = [
        include_str!("claims.rs"),
        include_str!("durability.rs"),
        include_str!("isolation.rs"),
        include_str!("revocation.rs"),
    ];
    let promises = README.split("What that promises").nth(1).and_then(|rest| rest.split("## ").next());
    let promises = promises.expect("the list of promises");
    let names: Vec<&str> = promises.split('`').skip(1).step_by(2).filter(|name| !name.contains('/')).collect();
    assert!(names.len() >= 12, "{names:?}");
    for name in names {
        let test = format!("#[tokio::test]\nasync fn {name}()");
        assert!(TESTS.iter().any(|text| text.contains(&test)), "{name} is promised and not tested");
    }
}
