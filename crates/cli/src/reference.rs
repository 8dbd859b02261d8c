//! Man pages and the Markdown reference, both generated from the clap commands.

use std::fmt::Write;
use std::path::Path;

use anyhow::Context;
use clap::Command;

/// Writes a man page for each command.
pub(crate) fn man(command: Command, out: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(out).with_context(|| format!("cannot create the directory {}", out.display()))?;
    clap_mangen::generate_to(command, out).with_context(|| format!("cannot write to {}", out.display()))?;
    println!("man pages written to {}", out.display());
    Ok(())
}

/// The Markdown reference of all commands.
pub(crate) fn markdown(mut command: Command) -> String {
    // A fixed width, so that the generated file does not depend on the terminal.
    command = command.term_width(100);
    command.build();
    let mut out = String::from("# Command reference\n\nMade by `make generate` from the commands themselves.\n");
    section(&mut command, &mut out);
    out
}

fn section(command: &mut Command, out: &mut String) {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let help = command.render_long_help().to_string();
    let help = help.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    let _ = write!(out, "\n## `{name}`\n\n```text\n{}\n```\n", help.trim());
    for sub in command.get_subcommands_mut().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        section(sub, out);
    }
}
