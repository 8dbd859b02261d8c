//! Two outputs, side by side.

use crate::kubectl::{Allowance, Output, Plain};

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Both outputs are equal, within the allowance.
    Same,
    /// The outputs differ, and the script allows it with a reason.
    Excused,
    /// They differ: a unified diff.
    Different(String),
}

/// Compares what the real server and ours made of the same command.
pub fn compare(plain: &Plain, allowance: &Allowance, real: &Output, ours: &Output) -> Verdict {
    let [mut wanted, mut got] = [real, ours].map(|output| lines(plain, output));
    if matches!(allowance, Allowance::Unordered(_)) {
        wanted.sort();
        got.sort();
    }
    let same = match allowance {
        Allowance::Fewer(_) => got.len() > 1 && got.iter().all(|line| wanted.contains(line)),
        _ => wanted == got,
    };
    match allowance {
        _ if same => Verdict::Same,
        Allowance::Differs(_) => Verdict::Excused,
        _ => Verdict::Different(diff(&wanted, &got)),
    }
}

/// The normalized result of a command: exit code, stdout, stderr.
fn lines(plain: &Plain, output: &Output) -> Vec<String> {
    let mut lines = vec![format!("exit {}", output.code)];
    lines.extend(plain.plain(&output.stdout).lines().map(|line| format!("  {line}")));
    lines.extend(plain.plain(&output.stderr).lines().map(|line| format!("! {line}")));
    lines
}

/// A unified diff with two lines of context and no positions.
fn diff(wanted: &[String], got: &[String]) -> String {
    let start = wanted.iter().zip(got).take_while(|(a, b)| a == b).count();
    let rest = wanted.len().min(got.len()) - start;
    let end = wanted.iter().rev().zip(got.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    let (left, right) = (&wanted[start..wanted.len() - end], &got[start..got.len() - end]);

    let mut marked: Vec<(char, &str)> = wanted[..start].iter().map(|line| (' ', line.as_str())).collect();
    marked.extend(edits(left, right));
    marked.extend(wanted[wanted.len() - end..].iter().map(|line| (' ', line.as_str())));

    let changed: Vec<usize> = (0..marked.len()).filter(|&i| marked[i].0 != ' ').collect();
    let mut text = String::from("--- real\n+++ embedded\n");
    let mut last = None;
    for (i, (mark, line)) in marked.iter().enumerate() {
        let near = changed.partition_point(|&c| c + 2 < i);
        if changed.get(near).is_some_and(|&c| c <= i + 2) {
            if last.is_some_and(|last| last + 1 != i) {
                text.push_str("@@\n");
            }
            last = Some(i);
            text.push_str(&format!("{mark}{line}\n"));
        }
    }
    text
}

/// The shortest edits from one list to the other, by longest common subsequence.
fn edits<'a>(left: &'a [String], right: &'a [String]) -> Vec<(char, &'a str)> {
    // Beyond this size the table would cost more than the diff is worth.
    if left.len().saturating_mul(right.len()) > 16_000_000 {
        let removed = left.iter().map(|line| ('-', line.as_str()));
        return removed.chain(right.iter().map(|line| ('+', line.as_str()))).collect();
    }
    let width = right.len() + 1;
    let mut common = vec![0u32; (left.len() + 1) * width];
    for i in (0..left.len()).rev() {
        for j in (0..right.len()).rev() {
            common[i * width + j] = if left[i] == right[j] {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j, mut marked) = (0, 0, Vec::new());
    while i < left.len() || j < right.len() {
        if i < left.len() && j < right.len() && left[i] == right[j] {
            marked.push((' ', left[i].as_str()));
            (i, j) = (i + 1, j + 1);
        } else if j == right.len() || i < left.len() && common[(i + 1) * width + j] >= common[i * width + j + 1] {
            marked.push(('-', left[i].as_str()));
            i += 1;
        } else {
            marked.push(('+', right[j].as_str()));
            j += 1;
        }
    }
    marked
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn said(stdout: &str) -> Output {
        Output { code: 0, stdout: stdout.to_owned(), stderr: String::new(), took: Duration::ZERO }
    }

    #[test]
    fn a_difference_is_a_unified_diff() {
        let verdict = compare(&Plain::default(), &Allowance::None, &said("a\nb\nc\nd\ne\n"), &said("a\nb\nx\nd\ne\n"));
        let text = "--- real\n+++ embedded\n   a\n   b\n-  c\n+  x\n   d\n   e\n";
        assert_eq!(verdict, Verdict::Different(text.to_owned()));
    }

    #[test]
    fn another_exit_code_is_a_difference() {
        let ours = Output { code: 1, ..said("a") };
        assert!(matches!(compare(&Plain::default(), &Allowance::None, &said("a"), &ours), Verdict::Different(_)));
    }

    #[test]
    fn fewer_lines_pass_and_others_do_not() {
        let fewer = Allowance::Fewer("why".to_owned());
        let judge = |ours: &str| compare(&Plain::default(), &fewer, &said("a\nb\nc\n"), &said(ours));
        assert_eq!(judge("a\nc\n"), Verdict::Same);
        assert!(matches!(judge("a\nd\n"), Verdict::Different(_)));
        assert!(matches!(judge(""), Verdict::Different(_)));
    }
}
