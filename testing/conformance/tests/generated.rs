//! Generated facts, held to what they were made from.

use std::process::Command;

fn checked(program: &str) {
    let output = Command::new(program).arg("--check").output().expect("the program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn the_committed_facts_are_what_the_real_server_says() {
    checked(env!("CARGO_BIN_EXE_facts"));
}

#[test]
fn the_committed_table_is_what_the_go_types_say_and_reads_every_example() {
    checked(env!("CARGO_BIN_EXE_protobuf"));
}
