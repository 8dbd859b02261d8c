//! What templates put into shell scripts: each value must be one word, whatever it holds.

/// The interpolations of a script that a value could break out of: the line of each, and what is wrong.
pub(super) fn findings(script: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, at, expression) in interpolations(script) {
        let shown = format!("{{{{ {expression} }}}}");
        if last_filter(expression) != Some("sh") {
            let message = format!(
                "{shown} is put into the script as it is, so that its value can be read as commands: write {{{{ {expression} | sh }}}}"
            );
            found.push((number, message));
        } else if quoted(at) {
            let message = format!(
                "{shown} stands in quotes of the script, which end the quotes that sh makes: take the quotes around it away"
            );
            found.push((number, message));
        }
    }
    found
}

/// Each interpolation: its line, what stands before it in that line, and its expression.
pub(super) fn interpolations(script: &str) -> Vec<(usize, &str, &str)> {
    let (mut all, mut from) = (Vec::new(), 0);
    while let Some(open) = next(script, from) {
        let (begin, end) = (open + 2, if script[open..].starts_with("{#") { "#}" } else { "}}" });
        let Some(close) = script[begin..].find(end).map(|at| begin + at) else { break };
        if end == "}}" {
            let expression = script[begin..close].trim_matches(['-', '+']).trim();
            let line = script[..open].rfind('\n').map_or(0, |at| at + 1);
            all.push((script[..open].matches('\n').count() + 1, &script[line..open], expression));
        }
        from = close + 2;
    }
    all
}

/// Where the next interpolation or comment begins.
fn next(script: &str, from: usize) -> Option<usize> {
    ["{{", "{#"].iter().filter_map(|open| script[from..].find(open).map(|at| from + at)).min()
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

/// Whether quotes are open at the end of that part of a line. Quotes that were opened in a line before are not seen.
fn quoted(before: &str) -> bool {
    let (mut open, mut escaped) = (None, false);
    for c in before.chars() {
        match (open, c) {
            _ if escaped => escaped = false,
            (None | Some('"'), '\\') => escaped = true,
            (Some(quote), c) if quote == c => open = None,
            (None, '"' | '\'') => open = Some(c),
            _ => {}
        }
    }
    open.is_some()
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
        ] {
            assert_eq!(lines(bad), wanted, "{bad}");
        }
    }
}
