//! The generated facts about built-in types, held to a running kube-apiserver.

use std::process::Command;

#[test]
fn the_committed_facts_are_what_the_real_server_says() {
    let output = Command::new(env!("CARGO_BIN_EXE_facts")).arg("--check").output().expect("the facts binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}
