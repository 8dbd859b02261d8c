//! Values of templates in shell scripts: each must be one word, whatever it contains.

/// The interpolations of a script that a value could break out of: the line of each, and what is wrong.
pub(super) fn findings(script: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for Interpolation { line, place, expression } in interpolations(script) {
        let shown = format!("{{{{ {expression} }}}}");
        let filtered = last_filter(expression) == Some("sh");
        let message = match place {
            ShellContext::Bare if filtered => continue,
            ShellContext::HereDocument => format!(
                "{shown} is in a here-document, where quotes do not stop $(…), and a line of the value can end the document: write the text with printf '%s\\n' and {{{{ … | sh }}}}, or make it one of spec.files"
            ),
            ShellContext::Comment => format!(
                "{shown} is in a comment, which ends at a line break of the value, and the rest would run: remove it from the comment"
            ),
            ShellContext::Backquoted => format!(
                "{shown} is in backquotes, which end at the first backquote of the value, quoted or not: use $(…) and {{{{ … | sh }}}}"
            ),
            ShellContext::Quoted if filtered => format!(
                "{shown} is in quotes of the script, which end the quotes that the filter sh adds: remove the quotes around it"
            ),
            ShellContext::Bare | ShellContext::Quoted => format!(
                "{shown} is inserted unquoted, so its value could run as commands: write {{{{ {expression} | sh }}}}"
            ),
        };
        found.push((line, message));
    }
    found
}

/// Whether a file is run or read by a shell: by its first line, its name, or because it is executable and its first line names no other program.
pub(super) fn is_script(path: &str, mode: u32, text: &str) -> bool {
    let Some(first) = text.strip_prefix("#!").and_then(|rest| rest.lines().next()) else {
        return path.ends_with(".sh") || (mode & 0o111 != 0 && !text.starts_with("\u{7f}ELF"));
    };
    let interpreter = first.split_whitespace().find(|word| !word.ends_with("/env") && !word.starts_with('-'));
    let name = interpreter.and_then(|word| word.rsplit('/').next()).unwrap_or_default();
    is_shell(name)
}

/// Whether a setting of a unit runs a shell with an option such as `-c`, also through another program.
pub(super) fn runs_shell(setting: &str) -> bool {
    let Some((_, command)) = setting.split_once('=') else { return false };
    let words: Vec<&str> = command.split_whitespace().collect();
    words.iter().enumerate().any(|(at, word)| {
        // Quotes, and the characters that systemd allows before a program.
        let program = word.trim_matches(['"', '\'']).trim_start_matches(['@', '-', ':', '+', '!', '|', '"', '\'']);
        let name = program.rsplit('/').next().unwrap_or_default();
        let after = &words[at + 1..];
        match name {
            "su" | "sg" => after.iter().any(|word| is_command_option(word)),
            // With a user as an option, it runs a program instead of a shell.
            "runuser" => {
                let as_user = |word: &&&str| bare(word).starts_with("-u") || bare(word).starts_with("--user");
                after.iter().take_while(|word| !as_user(word)).any(|word| is_command_option(word))
            }
            _ if is_shell(name) || matches!(name, "csh" | "fish" | "posh" | "rbash" | "tcsh" | "yash") => {
                // `| sh -}}` is the filter of a template.
                let option = after.first().and_then(|word| bare(word).strip_prefix('-'));
                option.is_some_and(|rest| !rest.starts_with("}}"))
            }
            _ => false,
        }
    })
}

/// A word without the quotes before it.
fn bare(word: &str) -> &str {
    word.trim_start_matches(['"', '\''])
}

/// Whether a word is the option of `su` that hands a command to a shell: `-c`, also after options without a value, or a long one. The long ones can be
/// abbreviated.
fn is_command_option(word: &str) -> bool {
    let word = bare(word);
    match word.strip_prefix("--") {
        Some(long) => long.starts_with('c') || long.starts_with("se"),
        None => word
            .strip_prefix('-')
            .and_then(|short| short.split_once('c'))
            .is_some_and(|(flags, _)| flags.chars().all(|flag| "flmpPT".contains(flag))),
    }
}

/// Whether a program with that name reads scripts of `sh`.
fn is_shell(name: &str) -> bool {
    matches!(name, "sh" | "ash" | "bash" | "dash" | "ksh" | "mksh" | "zsh")
}

/// A value in a template.
pub(super) struct Interpolation<'a> {
    /// Line of the value.
    pub(super) line: usize,
    /// Its expression, without braces.
    pub(super) expression: &'a str,
    place: ShellContext,
}

/// The context of an interpolation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShellContext {
    Bare,
    Quoted,
    Backquoted,
    HereDocument,
    Comment,
}

/// An open construct around the reader's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenConstruct {
    Single,
    Double,
    Backquotes,
    /// `$(` or `(`: quotes inside it are independent.
    Parenthesis,
    /// `$((`: quotes inside it do not stop `$(…)`.
    Arithmetic,
    Comment,
}

/// A here-document that starts with the next line.
struct HereDocument {
    end: String,
    without_tabs: bool,
}

/// Reads a script as a shell does, from its first character on: quotes and here-documents may span lines.
struct ShellReader<'a> {
    script: &'a str,
    at: usize,
    open: Vec<OpenConstruct>,
    waiting: Vec<HereDocument>,
    found: Vec<Interpolation<'a>>,
}

/// The values of a template, also of one that is no script; the contexts have no meaning then.
pub(super) fn interpolations(script: &str) -> Vec<Interpolation<'_>> {
    let mut reader = ShellReader { script, at: 0, open: Vec::new(), waiting: Vec::new(), found: Vec::new() };
    while reader.step() {}
    reader.found
}

impl<'a> ShellReader<'a> {
    fn rest(&self) -> &'a str {
        &self.script[self.at..]
    }

    fn place(&self) -> ShellContext {
        // Backquotes end at the first backquote, whatever is quoted inside them.
        if self.open.contains(&OpenConstruct::Backquotes) {
            return ShellContext::Backquoted;
        }
        match self.open.last() {
            None | Some(OpenConstruct::Parenthesis) => ShellContext::Bare,
            Some(OpenConstruct::Comment) => ShellContext::Comment,
            Some(_) => ShellContext::Quoted,
        }
    }

    /// Reads template syntax at this position, if there is any.
    fn template(&mut self, place: ShellContext) -> bool {
        let (script, open) = (self.script, self.at);
        let end = match script.get(open..open + 2) {
            Some("{{") => "}}",
            Some("{#") => "#}",
            Some("{%") => "%}",
            _ => return false,
        };
        let begin = open + 2;
        let Some(close) = script[begin..].find(end).map(|at| begin + at) else { return false };
        if end == "}}" {
            let expression = script[begin..close].trim_matches(['-', '+']).trim();
            let line = script[..open].matches('\n').count() + 1;
            self.found.push(Interpolation { line, place, expression });
        }
        self.at = close + 2;
        true
    }

    /// Reads one character, or template syntax. False at the end.
    fn step(&mut self) -> bool {
        if self.template(self.place()) {
            return true;
        }
        let before = self.script[..self.at].chars().next_back();
        let Some(c) = self.rest().chars().next() else { return false };
        self.at += c.len_utf8();
        match (self.open.last().copied(), c) {
            (Some(OpenConstruct::Comment), '\n') => {
                self.open.pop();
                self.here_documents();
            }
            (Some(OpenConstruct::Comment), _) => {}
            (Some(OpenConstruct::Single), '\'') => {
                self.open.pop();
            }
            (Some(OpenConstruct::Single), _) => {}
            // An escaped character is skipped; an interpolation is still read.
            (_, '\\') if self.rest().starts_with("{{") => {}
            (_, '\\') => self.at += self.rest().chars().next().map_or(0, char::len_utf8),
            (Some(OpenConstruct::Double), '"') => {
                self.open.pop();
            }
            (_, '`') if self.open.last() == Some(&OpenConstruct::Backquotes) => {
                self.open.pop();
            }
            (_, '`') => self.open.push(OpenConstruct::Backquotes),
            (_, '$') if self.rest().starts_with("((") => {
                self.at += 2;
                self.open.push(OpenConstruct::Arithmetic);
            }
            (Some(OpenConstruct::Arithmetic), ')') if self.rest().starts_with(')') => {
                self.at += 1;
                self.open.pop();
            }
            (Some(OpenConstruct::Arithmetic), '<' | '#' | '\'' | '"') => {}
            (_, '$') if self.rest().starts_with('(') => {
                self.at += 1;
                self.open.push(OpenConstruct::Parenthesis);
            }
            (Some(OpenConstruct::Double), _) => {}
            (_, '\'') => self.open.push(OpenConstruct::Single),
            (_, '"') => self.open.push(OpenConstruct::Double),
            (_, '(') => self.open.push(OpenConstruct::Parenthesis),
            (Some(OpenConstruct::Parenthesis), ')') => {
                self.open.pop();
            }
            (_, '#') if before.is_none_or(|before| before.is_whitespace() || ";&|()`".contains(before)) => {
                self.open.push(OpenConstruct::Comment);
            }
            (_, '<') if self.rest().starts_with("<<") => self.at += 2,
            (_, '<') if self.rest().starts_with('<') => {
                self.at += 1;
                self.here_document();
            }
            (_, '\n') => self.here_documents(),
            _ => {}
        }
        true
    }

    /// Reads the delimiter of a here-document.
    fn here_document(&mut self) {
        let without_tabs = self.rest().starts_with('-');
        self.at += usize::from(without_tabs);
        let word = self.rest().trim_start_matches([' ', '\t']);
        self.at = self.script.len() - word.len();
        let length = word.find(|c: char| c.is_whitespace() || ";&|<>()".contains(c)).unwrap_or(word.len());
        self.at += length;
        let end: String = word[..length].chars().filter(|c| !matches!(c, '\'' | '"' | '\\')).collect();
        if !end.is_empty() {
            self.waiting.push(HereDocument { end, without_tabs });
        }
    }

    /// Reads the here-documents that start here, at the start of a line.
    fn here_documents(&mut self) {
        for document in std::mem::take(&mut self.waiting) {
            while self.at < self.script.len() {
                let rest = self.rest();
                let line = &rest[..rest.find('\n').unwrap_or(rest.len())];
                let text = if document.without_tabs { line.trim_start_matches('\t') } else { line };
                if text == document.end {
                    self.at += line.len();
                    break;
                }
                let end = self.at + line.len();
                while self.at < end {
                    if !self.template(ShellContext::HereDocument) {
                        self.at += self.rest().chars().next().map_or(1, char::len_utf8);
                    }
                }
                // The line break.
                self.at += usize::from(self.rest().starts_with('\n'));
            }
            // The line break after the delimiter.
            self.at += usize::from(self.rest().starts_with('\n'));
        }
    }
}

/// The last filter of an expression, if it ends with one.
pub(super) fn last_filter(expression: &str) -> Option<&str> {
    let (mut quote, mut depth, mut bar) = (None, 0_i32, None);
    for (at, c) in expression.char_indices() {
        match (quote, c) {
            (Some(open), c) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth -= 1,
            (None, '|') if depth == 0 => bar = Some(at),
            _ => {}
        }
    }
    bar.map(|at| expression[at + 1..].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_interpolation_of_a_script_must_be_quoted_by_the_filter_alone() {
        let lines = |script: &str| findings(script).into_iter().map(|(line, _)| line).collect::<Vec<_>>();
        for good in [
            "echo {{ machine.name | sh }}",
            "echo {{- machine.name|sh -}}",
            "echo 'text' {{ cluster.a | default(\"b | c\") | sh }} \"text\"",
            "{% if machine.role == 'x' %}true{% endif %}",
            "{# {{ machine.name }} #}echo",
            "echo it\\'s {{ machine.name | sh }}",
            "echo \"$(id {{ machine.name | sh }})\" {{ machine.role | sh }}",
            "# it's a comment\necho {{ machine.name | sh }}",
            "echo a#b {{ machine.name | sh }}",
            "cat <<EOF\nit's \"text\"\nEOF\necho {{ machine.name | sh }}",
            "cat <<EOF\r\ntext\r\n",
            "cat <<-'E F'\n\ttext\n",
            "x=$((1 << (2 + 1)))\necho $((1 << 2)) {{ machine.name | sh }}\necho {{ machine.name | sh }}",
        ] {
            assert_eq!(lines(good), [0_usize; 0], "{good}");
        }
        for (bad, wanted) in [
            ("echo {{ machine.name }}", vec![1]),
            ("true\necho {{ machine.name | upper }}; echo {{ machine.role }}", vec![2, 2]),
            ("echo {{ machine.name | sh | upper }}", vec![1]),
            ("echo {{ cluster.a | default('| sh') }}", vec![1]),
            ("echo {{ (machine.name | sh) ~ cluster.a }}", vec![1]),
            ("echo \"{{ machine.name | sh }}\"", vec![1]),
            ("echo 'a\\' '{{ machine.name | sh }}'", vec![1]),
            // Quotes that were opened in an earlier line.
            ("echo \"\n{{ machine.name | sh }}\n\"", vec![2]),
            ("echo '\n\n' \"$x\n{{ machine.name | sh }}\"", vec![4]),
            ("echo \"$(echo \"{{ machine.name | sh }}\")\"", vec![1]),
            // Here-documents, quoted or not, with and without tabs, and two of them.
            ("cat <<EOF\n{{ machine.name | sh }}\nEOF", vec![2]),
            ("cat <<'EOF'\n{{ machine.name }}\nEOF\necho {{ machine.name }}", vec![2, 4]),
            ("cat <<-\"EOF\" >x; true\n\t{{ machine.name | sh }}\n\tEOF\necho {{ machine.name | sh }}", vec![2]),
            ("cat <<A <<B\n1\nA\n{{ machine.name | sh }}\nB\necho {{ machine.name | sh }}", vec![4]),
            // A line break in the value ends a comment; a backquote in it ends backquotes.
            ("true # {{ machine.name | sh }}", vec![1]),
            ("echo `id {{ machine.name | sh }}`", vec![1]),
            ("echo $((1 + {{ machine.name | sh }}))", vec![1]),
        ] {
            assert_eq!(lines(bad), wanted, "{bad}");
        }
    }

    /// The lint accepts values that cannot make a shell run commands, and refuses those that can.
    #[test]
    fn a_shell_runs_nothing_of_a_value_where_the_lint_finds_nothing() {
        let hostile = "a'; touch PWNED; $(touch PWNED) `touch PWNED` \"\nEOF\ntouch PWNED\n";
        let sh = format!("'{}'", hostile.replace('\'', r"'\''"));
        let folder = std::env::temp_dir().join(format!("fleetwright-shell-{}", std::process::id()));
        for (script, allowed) in [
            ("echo {{ x | sh }}", true),
            ("echo \"$(echo {{ x | sh }})\"", true),
            ("cat <<EOF\ntext\nEOF\necho {{ x | sh }}", true),
            ("echo \"\n{{ x | sh }}\"", false),
            ("cat <<EOF\n{{ x | sh }}\nEOF", false),
            ("cat <<'EOF'\n{{ x | sh }}\nEOF", false),
            ("true # {{ x | sh }}", false),
        ] {
            std::fs::create_dir_all(&folder).unwrap();
            let rendered = script.replace("{{ x | sh }}", &sh);
            let _ =
                std::process::Command::new("/bin/sh").args(["-c", &rendered]).current_dir(&folder).output().unwrap();
            let ran = folder.join("PWNED").exists();
            std::fs::remove_dir_all(&folder).unwrap();
            assert_eq!((ran, findings(script).is_empty()), (!allowed, allowed), "{script}");
        }
    }

    #[test]
    fn a_shell_in_a_command_is_known_by_its_whole_name() {
        for setting in [
            "ExecStart=/bin/sh -c 'echo'",
            "ExecStart=-/usr/bin/bash -ec 'echo'",
            "ExecStart=sh -c 'echo'",
            "ExecStart=-sh -c 'echo'",
            "ExecStart = \"/bin/sh\" \"-c\" 'echo'",
            "ExecStart=-\"/bin/sh\" -c 'echo'",
            "ExecStart=/usr/bin/env A=b dash -c 'echo'",
            "ExecStart=/usr/bin/busybox sh -c 'echo'",
            "ExecStart=/usr/bin/ssh host 'sh -c true'",
            "ExecStart=/usr/bin/fish -c 'echo'",
            "ExecStart=/usr/bin/su - app -c 'echo {{ x }}'",
            "ExecStart=/bin/su -lc 'echo' app",
            "ExecStart=/bin/su app \"-c\" echo",
            "ExecStart=-su --command='echo' app",
            "ExecStart=/usr/bin/su app --session-command echo",
            "ExecStart=/usr/bin/env A=b su -s /bin/sh -c 'echo' app",
            "ExecStart=/usr/bin/sg docker -c 'echo'",
            "ExecStart=/usr/sbin/runuser -u app -- sh -c 'echo {{ x }}'",
            "ExecStart=/usr/sbin/runuser app -c 'echo'",
            "ExecStart=/usr/sbin/runuser -l app -c 'agent -u x'",
        ] {
            assert!(runs_shell(setting), "{setting}");
        }
        for setting in [
            "ExecStart=/usr/bin/ssh -N host",
            "ExecStart=/usr/bin/refresh --all",
            "ExecStart=/usr/bin/a-sh -c x",
            "ExecStart=/usr/bin/agent --path /bin/sh.d -v",
            "ExecStart=/usr/bin/agent --shell=/bin/sh.d -v",
            "ExecStart=/usr/bin/agent {{ machine.name | sh -}} -v",
            "ExecStart=/bin/sh /usr/bin/script",
            "ExecStart=/bin/sh",
            "ExecStart=/usr/sbin/runuser -u app -- /usr/bin/agent -c /etc/agent.conf",
            "ExecStart=/usr/sbin/runuser --user=app /usr/bin/agent -c /etc/agent.conf",
            "ExecStart=/usr/bin/sudo -u app /usr/bin/agent -c /etc/agent.conf",
            "ExecStart=/usr/bin/su - app",
            "ExecStart=/usr/bin/sum -c /etc/sums",
            "ExecStart=",
            "Exec",
        ] {
            assert!(!runs_shell(setting), "{setting}");
        }
    }

    #[test]
    fn files_that_a_shell_runs_are_known() {
        for (path, mode, text) in [
            ("/usr/local/bin/a", 0o755, "#!/bin/sh -eu\n"),
            ("/usr/local/bin/a", 0o644, "#!/usr/bin/env bash\n"),
            ("/usr/local/bin/a", 0o644, "#!/usr/bin/env -S bash -e\n"),
            ("/etc/profile.d/a.sh", 0o644, "export A=b\n"),
            ("/usr/local/bin/a", 0o700, "echo\n"),
        ] {
            assert!(is_script(path, mode, text), "{path} {text}");
        }
        for (path, mode, text) in [
            ("/usr/local/bin/a", 0o755, "#!/usr/bin/python3\n"),
            ("/usr/local/bin/a", 0o755, "#!/usr/bin/env perl\n"),
            ("/etc/a.conf", 0o644, "a = {{ machine.name }}\n"),
        ] {
            assert!(!is_script(path, mode, text), "{path} {text}");
        }
    }
}
