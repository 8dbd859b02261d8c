//! The commands, and how far each may differ.

/// One line of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The part of the script that it belongs to.
    pub section: String,
    /// The shell command.
    pub line: String,
    /// The allowed difference between the two servers.
    pub allowance: Allowance,
}

/// The allowed difference between the two servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// Not at all.
    None,
    /// Completely; and why.
    Differs(String),
    /// The embedded server may leave lines out; and why.
    Fewer(String),
    /// In the order of lines; and why.
    Unordered(String),
}

/// The commands of a script. `## text` starts a section; `# word: why` before a command allows a difference.
pub fn script(text: &str) -> Vec<Command> {
    let mut commands = Vec::new();
    let mut section = String::new();
    let mut allowance = Allowance::None;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(title) = line.strip_prefix("## ") {
            title.clone_into(&mut section);
        } else if let Some(comment) = line.strip_prefix('#') {
            if let Some(stated) = stated(comment) {
                allowance = stated;
            }
        } else {
            let allowance = std::mem::replace(&mut allowance, Allowance::None);
            commands.push(Command { section: section.clone(), line: line.to_owned(), allowance });
        }
    }
    commands
}

/// The allowance that a comment states: one space, the word, a colon. The explanation at the top is indented deeper.
fn stated(comment: &str) -> Option<Allowance> {
    let (word, why) = comment.strip_prefix(' ')?.split_once(": ")?;
    let why = why.trim().to_owned();
    match word {
        "differs" => Some(Allowance::Differs(why)),
        "fewer" => Some(Allowance::Fewer(why)),
        "unordered" => Some(Allowance::Unordered(why)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_is_for_the_next_command_only() {
        let commands =
            script("#   fewer: an example\n## One\n# differs: so be it\nkubectl version\n\nkubectl get pods\n");
        let found: Vec<_> = commands.iter().map(|c| (c.section.as_str(), c.line.as_str(), &c.allowance)).collect();
        let differs = Allowance::Differs("so be it".to_owned());
        assert_eq!(found, [("One", "kubectl version", &differs), ("One", "kubectl get pods", &Allowance::None)]);
    }
}
