//! The generated facts about protobuf messages, held to the Go types and their examples.

use std::process::Command;

#[test]
fn the_committed_table_is_what_the_go_types_say_and_reads_every_example() {
    let output = Command::new(env!("CARGO_BIN_EXE_protobuf")).arg("--check").output().expect("the binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}
