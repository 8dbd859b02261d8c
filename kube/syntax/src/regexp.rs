//! Regular expressions in the syntax of Go's `regexp` (RE2).
//!
//! The pattern is read as Go's `regexp/syntax` reads it, and each part is written again in the syntax of the crate
//! `regex`, which matches in linear time as Go does. The two differ, among others, in that Go's Perl classes and word
//! boundaries are ASCII, its classes have neither brackets nor operators inside, `\Q…\E` quotes, a `{` that starts no
//! repetition is a character, and a repetition cannot be repeated.
//!
//! Not as in Go: after flags alone (`a(?i)*`) and after an empty quote there is nothing to repeat, short names of scripts
//! (`\p{Grek}`) are known, and the limits on size and depth are lower.
//!
//! A short pattern can take seconds to compile. So its effort is estimated while it is read, before the parser and the
//! compiler of `regex` see it, and a pattern of more than [`EFFORT_LIMIT`] is refused.

use std::str::Chars;

use regex::{Error, Regex, RegexBuilder};
use regex_syntax::hir::{Class, HirKind};

/// The most effort that one pattern may take. A unit is about 0.1 µs and a state of the compiled pattern: `[a-z]{63}` takes about 800 units,
/// `.{1000}` 36,000 and `\pL{63}` 150,000.
pub const EFFORT_LIMIT: u64 = 250_000;
/// The most effort of patterns that are kept together, such as those of one CustomResourceDefinition.
pub const TOTAL_EFFORT_LIMIT: u64 = 2_000_000;
const EFFORT_ADVICE: &str =
    "use shorter patterns, smaller repeat counts, fewer classes such as \\pL, and these without (?i)";

/// The effort of the shortest pattern.
const BASE_EFFORT: u64 = 200;
/// The most effort that a byte of a pattern can take to be read.
const READ_EFFORT: u64 = 40;
/// The effort to look up a class such as `\pL`.
const LOOKUP_EFFORT: u64 = 100;
/// The effort of a class with all characters beyond ASCII, which take one to four bytes.
const WIDE_EFFORT: u64 = 32;
/// With `(?i)` the parser looks at each character of a class up to the last one that has a case: this many in one unit.
const FOLDED_PER_UNIT: u64 = 4;
const LAST_FOLDED: u64 = 0x1E943;

/// The most memory of a compiled pattern, and of what a search adds to it.
const SIZE_LIMIT: usize = 4 << 20;
/// The nesting limit of groups, alternatives and repetitions.
const NEST_LIMIT: u32 = 250;
/// The longest translated pattern. The parser takes hundreds of times as much memory before [`SIZE_LIMIT`] is checked.
const LENGTH_LIMIT: usize = 64 << 10;
/// A range of more characters than this can be as costly as one of all characters.
const WIDE_RANGE: u64 = 2000;
/// The limit of the product of all repetitions around an expression.
const REPEAT_LIMIT: u64 = 1000;

/// The classes such as `[:alpha:]`, which mean the same in both syntaxes.
const NAMED_CLASSES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];

/// The characters that are written with a backslash.
const META: &str = r"\.+*?()|[]{}^$#&-~";

/// Compiles a pattern.
///
/// # Errors
/// Go's message for the error in the pattern.
pub fn compile(pattern: &str) -> Result<Regex, String> {
    let (translated, _) = translate(pattern)?;
    let mut builder = RegexBuilder::new(&translated);
    builder.size_limit(SIZE_LIMIT).dfa_size_limit(SIZE_LIMIT).nest_limit(NEST_LIMIT);
    builder.build().map_err(|error| match error {
        Error::CompiledTooBig(_) => too_large(pattern),
        // The translation is well-formed: nothing else can be wrong with it.
        _ => problem("expression nests too deeply", pattern),
    })
}

/// Reads a pattern without compiling it.
///
/// # Errors
/// Go's message for the error in the pattern. A pattern without one may still nest too deeply.
pub fn check(pattern: &str) -> Result<(), String> {
    translate(pattern).map(drop)
}

/// An estimate of the time that [`compile`] takes for a pattern, also for one that it refuses. See [`EFFORT_LIMIT`].
pub fn effort(pattern: &str) -> u64 {
    match translate(pattern) {
        Ok((_, effort)) => effort,
        Err(_) => BASE_EFFORT + READ_EFFORT * pattern.len() as u64,
    }
}

/// The error for patterns that take more effort together than `limit`. `what` contains them, such as `this schema`.
pub fn total_too_large(what: &str, limit: u64) -> String {
    format!("the patterns of {what} together take more than {limit} units of effort to compile; {EFFORT_ADVICE}")
}

const BAD_ESCAPE: &str = "invalid escape sequence";
const BAD_RANGE: &str = "invalid character class range";
const BAD_REPEAT: &str = "invalid repeat count";
const BAD_NAME: &str = "invalid named capture";
const TOO_LARGE: &str = "expression too large";

fn problem(what: &str, shown: &str) -> String {
    format!("error parsing regexp: {what}: `{shown}`")
}

fn too_large(pattern: &str) -> String {
    format!("{}; {EFFORT_ADVICE}", problem(TOO_LARGE, pattern))
}

/// Writes a pattern in the syntax of `regex`, and estimates the effort to compile it.
fn translate(pattern: &str) -> Result<(String, u64), String> {
    let mut translator = Translator {
        pattern,
        rest: pattern,
        out: String::with_capacity(pattern.len() + 16),
        groups: Vec::new(),
        repeats: 1,
        effort: 0,
        operand: None,
        repetition: None,
        reading: BASE_EFFORT,
        class: ClassSize::default(),
        folds: false,
        names_end: false,
    };
    while let Some(c) = translator.rest.chars().next() {
        translator.part(c)?;
        translator.check_size()?;
    }
    if !translator.groups.is_empty() {
        return Err(problem("missing closing )", pattern));
    }
    Ok((translator.out, translator.effort + translator.reading))
}

/// What a repetition would repeat.
struct Operand {
    repeats: u64,
    effort: u64,
}

/// What a class holds.
#[derive(Clone, Copy, Default)]
struct ClassSize {
    /// The effort of its ranges.
    effort: u64,
    /// The number of characters that case folding looks at.
    characters: u64,
}

impl ClassSize {
    fn add(&mut self, low: u64, high: u64) {
        self.effort += match high {
            0..=0x7F => 1,
            _ if high - low > WIDE_RANGE => WIDE_EFFORT,
            _ => 3,
        };
        self.characters += (high.min(LAST_FOLDED) + 1).saturating_sub(low);
    }

    /// Adds a class of almost all characters, such as `\W`.
    fn add_complement(&mut self) {
        self.add(0, char::MAX.into());
    }
}

struct Translator<'p> {
    pattern: &'p str,
    /// The unread rest of the pattern.
    rest: &'p str,
    out: String,
    /// The `repeats` and the `effort` around each open group.
    groups: Vec<(u64, u64)>,
    /// How often the most repeated expression of this group is repeated, as far as counts tell.
    repeats: u64,
    /// The effort of the expressions of this group, with their repetitions.
    effort: u64,
    operand: Option<Operand>,
    /// The pattern from the last repetition on, if nothing follows it yet.
    repetition: Option<&'p str>,
    /// The effort that is not repeated, because it is over before the pattern is compiled.
    reading: u64,
    /// The class that is being read.
    class: ClassSize,
    /// Whether `(?i)` was read: from there on it may apply.
    folds: bool,
    /// Whether no `:]` follows. Then it is not searched for again, which would take quadratic time.
    names_end: bool,
}

impl<'p> Translator<'p> {
    /// Reads one part of the pattern, which starts with `c`.
    fn part(&mut self, c: char) -> Result<(), String> {
        let before = self.repetition.take();
        match c {
            '(' if self.rest.starts_with("(?") => self.special_group()?,
            '(' => {
                self.take(1);
                self.open("(?:");
            }
            ')' => self.close()?,
            '|' => {
                self.take(1);
                self.out.push('|');
                self.effort += 4;
                self.operand = None;
            }
            '^' | '$' | '.' => {
                self.take(1);
                self.out.push(c);
                self.end_operand(1, if c == '.' { WIDE_EFFORT } else { 2 });
            }
            '[' => self.class()?,
            '*' | '+' | '?' => self.repeat(1, 1, before)?,
            '{' => match Counts::parse(self.rest) {
                Some(counts) => {
                    let most = counts.most.unwrap_or(counts.least);
                    if counts.least.max(most) > REPEAT_LIMIT || counts.least > most {
                        return Err(problem(BAD_REPEAT, &self.rest[..counts.len]));
                    }
                    self.repeat(counts.len, most, before)?;
                }
                None => self.character(c),
            },
            '\\' => self.escape()?,
            _ => self.character(c),
        }
        Ok(())
    }

    /// Reads `len` bytes.
    fn take(&mut self, len: usize) -> &'p str {
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }

    fn check_size(&self) -> Result<(), String> {
        let exceeds = self.out.len() > LENGTH_LIMIT || self.effort + self.reading > EFFORT_LIMIT;
        if exceeds { Err(too_large(self.pattern)) } else { Ok(()) }
    }

    /// Records that the last written expression can be repeated.
    fn end_operand(&mut self, repeats: u64, effort: u64) {
        self.operand = Some(Operand { repeats, effort });
        self.repeats = self.repeats.max(repeats);
        self.effort += effort;
    }

    fn character(&mut self, c: char) {
        self.take(c.len_utf8());
        self.push_character(c.into());
    }

    fn push_character(&mut self, number: u32) {
        push(&mut self.out, number);
        self.end_operand(1, if self.folds { 8 } else { 4 });
    }

    fn open(&mut self, group: &str) {
        self.out.push_str(group);
        self.groups.push((self.repeats, self.effort));
        self.repeats = 1;
        self.effort = 0;
        self.operand = None;
    }

    fn close(&mut self) -> Result<(), String> {
        let Some((repeats, effort)) = self.groups.pop() else { return Err(problem("unexpected )", self.pattern)) };
        self.take(1);
        self.out.push(')');
        let repeats = std::mem::replace(&mut self.repeats, repeats);
        let effort = std::mem::replace(&mut self.effort, effort);
        self.end_operand(repeats, effort + 2);
        Ok(())
    }

    /// Reads a repetition of `len` bytes, with the `?` that makes it lazy. If another repetition stands right before it,
    /// `before` is the pattern from there on.
    fn repeat(&mut self, len: usize, most: u64, before: Option<&'p str>) -> Result<(), String> {
        let start = self.rest;
        let lazy = start[len..].starts_with('?');
        let operator = self.take(len + usize::from(lazy));
        if let Some(before) = before {
            let nested = &before[..before.len() - self.rest.len()];
            return Err(problem("invalid nested repetition operator", nested));
        }
        let Some(operand) = self.operand.take() else {
            return Err(problem("missing argument to repetition operator", operator));
        };
        let repeats = operand.repeats * most.max(1);
        if repeats > REPEAT_LIMIT {
            return Err(problem(BAD_REPEAT, operator));
        }
        self.out.push_str(operator);
        // The operand counted once when it was read.
        self.effort -= operand.effort;
        self.end_operand(repeats, (operand.effort + 4) * most.max(1));
        self.repetition = Some(start);
        Ok(())
    }

    /// Reads the start of a group with a name, or flags. No caller uses what a group matches, so groups lose their names.
    fn special_group(&mut self) -> Result<(), String> {
        let start = self.rest;
        for opening in ["(?P<", "(?<"] {
            let Some(named) = start.strip_prefix(opening).filter(|named| !named.is_empty()) else { continue };
            let Some((name, rest)) = named.split_once('>') else { return Err(problem(BAD_NAME, start)) };
            if name.is_empty() || !name.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric()) {
                return Err(problem(BAD_NAME, &start[..start.len() - rest.len()]));
            }
            self.rest = rest;
            self.open("(?:");
            return Ok(());
        }
        self.flags()
    }

    /// Reads flags such as `(?i)`, or a group with flags such as `(?i-s:`.
    fn flags(&mut self) -> Result<(), String> {
        let start = self.rest;
        let (mut on, mut off) = (String::new(), String::new());
        let (mut negative, mut complete) = (false, true);
        for (at, c) in start.char_indices().skip(2) {
            let end = at + c.len_utf8();
            match c {
                'i' | 'm' | 's' | 'U' => {
                    let flags = if negative { &mut off } else { &mut on };
                    flags.push(c);
                    complete = true;
                }
                '-' if !negative => {
                    negative = true;
                    complete = false;
                }
                ':' | ')' if complete => {
                    self.take(end);
                    self.write_flags(&on, &off, c);
                    return Ok(());
                }
                _ => return Err(problem("invalid or unsupported Perl syntax", &start[..end])),
            }
        }
        Err(problem("invalid or unsupported Perl syntax", start))
    }

    /// Writes flags, each once: one that is turned on and off is off.
    fn write_flags(&mut self, on: &str, off: &str, end: char) {
        let on: String = "imsU".chars().filter(|flag| on.contains(*flag) && !off.contains(*flag)).collect();
        let off: String = "imsU".chars().filter(|flag| off.contains(*flag)).collect();
        self.folds |= on.contains('i');
        self.reading += 2;
        let flags = if off.is_empty() { on } else { format!("{on}-{off}") };
        if end == ':' {
            self.open(&format!("(?{flags}:"));
            return;
        }
        if !flags.is_empty() {
            self.out.push_str(&format!("(?{flags})"));
        }
        self.operand = None;
    }

    /// Reads what starts with a backslash, outside of a class.
    fn escape(&mut self) -> Result<(), String> {
        let second = self.rest.chars().nth(1);
        match second {
            Some('A' | 'z') => {
                let anchor = self.take(2);
                self.out.push_str(anchor);
            }
            Some('b') => {
                self.take(2);
                self.out.push_str(r"(?-u:\b)");
            }
            Some('B') => {
                self.take(2);
                self.out.push_str(r"(?-u:\B)");
            }
            Some('Q') => {
                self.quote();
                return Ok(());
            }
            Some(letter) if matches!(letter, 'p' | 'P') || perl_class(letter).is_some() => {
                self.class = ClassSize::default();
                match letter {
                    'p' | 'P' => self.unicode_class()?,
                    _ => self.perl_class(letter),
                }
                // Outside of brackets no class is folded after it was inverted.
                self.class.characters = 0;
                self.end_class(false);
                return Ok(());
            }
            _ => {
                let c = self.escaped()?;
                self.push_character(c);
                return Ok(());
            }
        }
        self.end_operand(1, 2);
        Ok(())
    }

    /// Reads `\Q…\E`. Without an end it quotes the rest.
    fn quote(&mut self) {
        let start = self.rest;
        let quoted = &start[2..];
        let (quoted, rest) = quoted.split_once(r"\E").unwrap_or((quoted, ""));
        self.rest = rest;
        self.operand = None;
        for c in quoted.chars() {
            self.push_character(c.into());
        }
    }

    fn perl_class(&mut self, letter: char) {
        self.take(2);
        self.out.push_str(perl_class(letter).unwrap_or_default());
        self.add_named_class(letter.is_ascii_uppercase());
    }

    /// Adds a class such as `\w` or `[:^alpha:]` to the class that is being read. The parser merges it with all ranges before it.
    fn add_named_class(&mut self, inverted: bool) {
        self.reading += self.class.effort / 4;
        if inverted {
            self.class.add_complement();
        } else {
            self.class.effort += 4;
        }
    }

    /// Ends a class, which can be repeated.
    fn end_class(&mut self, negated: bool) {
        let size = std::mem::take(&mut self.class);
        let mut effort = 4 + size.effort + if negated { WIDE_EFFORT } else { 0 };
        if self.folds {
            effort = 2 * effort + 8;
            self.reading += size.characters / FOLDED_PER_UNIT;
        }
        self.end_operand(1, effort);
    }

    /// Reads a class such as `\pL` or `\P{Greek}`: a general category or a script, where `regex` knows other properties too.
    fn unicode_class(&mut self) -> Result<(), String> {
        let start = self.rest;
        let (len, name) = match start[2..].chars().next() {
            Some('{') => start.find('}').map_or((start.len(), ""), |end| (end + 1, &start[3..end])),
            Some(letter) => (2 + letter.len_utf8(), &start[2..2 + letter.len_utf8()]),
            None => (2, ""),
        };
        let (inverted, name) = name.strip_prefix('^').map_or((false, name), |name| (true, name));
        let letter = if start.starts_with(r"\P") == inverted { 'p' } else { 'P' };
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || "_- ".contains(c));
        let known = ["gc", "sc"].map(|property| format!(r"\{letter}{{{property}={name}}}"));
        let parsed = known.iter().filter(|_| is_name).find_map(|class| Some((class, regex_syntax::parse(class).ok()?)));
        let Some((class, parsed)) = parsed else { return Err(problem(BAD_RANGE, &start[..len])) };
        self.out.push_str(class);
        self.take(len);
        self.reading += LOOKUP_EFFORT + self.class.effort / 4;
        let before = self.class.characters;
        if let HirKind::Class(Class::Unicode(class)) = parsed.kind() {
            for range in class.ranges() {
                self.class.add(u32::from(range.start()).into(), u32::from(range.end()).into());
            }
        }
        if self.folds {
            // The class in brackets around it, if there is one, is folded once more.
            self.reading += (self.class.characters - before) / FOLDED_PER_UNIT;
        }
        Ok(())
    }

    /// Reads an escape that stands for one character, and returns its number: it may be that of a surrogate.
    fn escaped(&mut self) -> Result<u32, String> {
        let start = self.rest;
        let mut chars = start[1..].chars();
        let Some(c) = chars.next() else { return Err(problem("trailing backslash at end of expression", "")) };
        let number = match c {
            'a' => Some(0x07),
            't' => Some(0x09),
            'n' => Some(0x0A),
            'v' => Some(0x0B),
            'f' => Some(0x0C),
            'r' => Some(0x0D),
            'x' => hexadecimal(&mut chars),
            '0'..='7' => {
                let more = start[2..].bytes().take(2).take_while(|b| (b'0'..=b'7').contains(b)).count();
                chars = start[2 + more..].chars();
                // One digit other than 0 would be a reference to a group.
                let is_number = c == '0' || more > 0;
                is_number.then(|| u32::from_str_radix(&start[1..2 + more], 8).ok()).flatten()
            }
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => Some(c.into()),
            _ => None,
        };
        self.rest = chars.as_str();
        number.ok_or_else(|| problem(BAD_ESCAPE, &start[..start.len() - self.rest.len()]))
    }

    /// Reads a class in brackets.
    fn class(&mut self) -> Result<(), String> {
        let class = self.rest;
        self.take(1);
        self.out.push('[');
        self.class = ClassSize::default();
        let negated = self.rest.starts_with('^');
        if negated {
            self.take(1);
            self.out.push('^');
        }
        // A `]` that comes first is a member.
        let mut first = true;
        while first || !self.rest.starts_with(']') {
            first = false;
            self.class_member(class)?;
            self.check_size()?;
        }
        self.take(1);
        self.out.push(']');
        self.end_class(negated);
        Ok(())
    }

    fn class_member(&mut self, class: &'p str) -> Result<(), String> {
        if self.named_class()? {
            return Ok(());
        }
        let start = self.rest;
        if let Some(letter) = start.strip_prefix('\\').and_then(|escaped| escaped.chars().next()) {
            if matches!(letter, 'p' | 'P') {
                return self.unicode_class();
            }
            if perl_class(letter).is_some() {
                self.perl_class(letter);
                return Ok(());
            }
        }
        let low = self.class_character(class)?;
        // A `-` at the end is a member.
        if self.rest.len() < 2 || !self.rest.starts_with('-') || self.rest.starts_with("-]") {
            push(&mut self.out, low);
            self.class.add(low.into(), low.into());
            return Ok(());
        }
        self.take(1);
        let high = self.class_character(class)?;
        if high < low {
            return Err(problem(BAD_RANGE, &start[..start.len() - self.rest.len()]));
        }
        push_range(&mut self.out, low, high);
        self.class.add(low.into(), high.into());
        Ok(())
    }

    fn class_character(&mut self, class: &str) -> Result<u32, String> {
        match self.rest.chars().next() {
            None => Err(problem("missing closing ]", class)),
            Some('\\') => self.escaped(),
            Some(c) => {
                self.take(c.len_utf8());
                Ok(c.into())
            }
        }
    }

    /// Reads a class such as `[:alpha:]`, if one stands here.
    fn named_class(&mut self) -> Result<bool, String> {
        let start = self.rest;
        let Some(after) = start.strip_prefix("[:").filter(|_| !self.names_end) else { return Ok(false) };
        let Some(len) = after.find(":]") else {
            self.names_end = true;
            return Ok(false);
        };
        let name = &after[..len];
        let class = self.take(len + 4);
        if !NAMED_CLASSES.contains(&name.strip_prefix('^').unwrap_or(name)) {
            return Err(problem(BAD_RANGE, class));
        }
        self.out.push_str(class);
        self.add_named_class(name.starts_with('^'));
        Ok(true)
    }
}

/// The counts of a repetition.
struct Counts {
    least: u64,
    most: Option<u64>,
    /// The length of the text.
    len: usize,
}

impl Counts {
    /// The counts of `{n}`, `{n,}` or `{n,m}` at the start of the text.
    fn parse(text: &str) -> Option<Self> {
        let after = text.strip_prefix('{')?;
        let inner = &after[..after.find(|c: char| !c.is_ascii_digit() && c != ',')?];
        if !after[inner.len()..].starts_with('}') {
            return None;
        }
        let (least, most) = match inner.split_once(',') {
            None => (inner, Some(inner)),
            Some((least, "")) => (least, None),
            Some((least, most)) => (least, Some(most)),
        };
        let most = match most {
            Some(most) => Some(count(most)?),
            None => None,
        };
        Some(Self { least: count(least)?, most, len: inner.len() + 2 })
    }
}

/// A number without leading zeros.
fn count(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let is_plain = is_number && (digits == "0" || !digits.starts_with('0'));
    is_plain.then(|| digits.parse().unwrap_or(u64::MAX))
}

/// Go's Perl classes, which are ASCII. They are also written so within a class: those of `regex` can have classes inside.
fn perl_class(letter: char) -> Option<&'static str> {
    Some(match letter {
        'd' => "[0-9]",
        'D' => "[^0-9]",
        's' => r"[\t\n\f\r ]",
        'S' => r"[^\t\n\f\r ]",
        'w' => "[0-9A-Za-z_]",
        'W' => "[^0-9A-Za-z_]",
        _ => return None,
    })
}

/// The number after `\x`: two digits, or any number of them in braces.
fn hexadecimal(chars: &mut Chars<'_>) -> Option<u32> {
    let first = chars.next()?;
    if first != '{' {
        let second = chars.next()?;
        return Some(first.to_digit(16)? * 16 + second.to_digit(16)?);
    }
    let mut number: Option<u32> = None;
    loop {
        let c = chars.next()?;
        if c == '}' {
            return number;
        }
        let more = number.unwrap_or(0) * 16 + c.to_digit(16)?;
        if more > u32::from(char::MAX) {
            return None;
        }
        number = Some(more);
    }
}

/// Writes a character, as itself or as a member of a class.
fn push(out: &mut String, number: u32) {
    let Some(c) = char::from_u32(number) else {
        // No text has a surrogate: no character is in this class.
        out.push_str("[a&&b]");
        return;
    };
    if META.contains(c) {
        out.push('\\');
    }
    out.push(c);
}

/// Writes a range of characters as a member of a class, without the surrogates.
fn push_range(out: &mut String, low: u32, high: u32) {
    let low = if char::from_u32(low).is_some() { low } else { 0xE000 };
    let high = if char::from_u32(high).is_some() { high } else { 0xD7FF };
    if high < low {
        // Both ends are surrogates.
        push(out, 0xD800);
        return;
    }
    push(out, low);
    out.push('-');
    push(out, high);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_means_what_it_means_in_go() {
        for (pattern, text, matches) in [
            ("", "", true),
            (r"^\d+$", "12", true),
            (r"^\d+$", "१२", false),
            (r"^\d+$", "٣", false),
            (r"^\D$", "٣", true),
            (r"^\W\S$", "ää", true),
            (r"^\s$", "\u{b}", false),
            (r"^[\w-]+$", "a-b", true),
            (r"^[\d&&x]+$", "1&x", true),
            (r"^[^\s]$", "x", true),
            (r"^[\D]$", "a", true),
            (r"^[^\D]$", "a", false),
            (r"^[^\D]$", "7", true),
            (r"^[x\S]$", " ", false),
            (r"^[\d-z]+$", "1-z", true),
            (r"^[\d-z]+$", "a", false),
            ("^[[a]$", "[", true),
            ("^[a[b]$", "[", true),
            ("^[[:a]+$", "[:a", true),
            ("^[]a]+$", "]a", true),
            ("^[^]]+$", "a", true),
            ("^[^]]+$", "]", false),
            ("^[a^]$", "^", true),
            ("^[^^]$", "^", false),
            ("^[a-]+$", "a-", true),
            ("^[-a]+$", "a-", true),
            ("^[a-c-e]+$", "b-e", true),
            ("^[a-c-e]+$", "d", false),
            ("^[+--]+$", "+,-", true),
            ("^[a&&b]+$", "&", true),
            ("^[ab~~b]+$", "a~b", true),
            ("^[[:alpha:]_]+$", "a_b", true),
            ("^[[:^alpha:]]+$", "1", true),
            ("^[^[:space:]]$", "\u{b}", false),
            ("^[[:word:]]+$", "a_1", true),
            (r"^\pL\p{Lu}\P{Greek}\p{^Nd}$", "aBcd", true),
            (r"^[\pN\p{Greek}]+$", "1αⅫ", true),
            (r"^[\PN]$", "1", false),
            (r"^\p{greek}$", "α", true),
            (r"^\p{Any}\p{ASCII}$", "äa", true),
            (r"^\Qa.b\E$", "a.b", true),
            (r"^\Qa.b\E$", "axb", false),
            (r"^\Qab\E+$", "abbb", true),
            (r"^\Q\\\E$", r"\\", true),
            (r"^\Q(*", "(*", true),
            (r"\bfoo\b", "a foo.", true),
            (r"\bo", "äo", true),
            (r"o\Bo", "foo", true),
            (r"a\Bä", "aä", false),
            (r"\Aa\z", "a", true),
            (r"a\z", "a\n", false),
            ("a$", "a\n", false),
            ("^a{,2}$", "a{,2}", true),
            ("^a{$", "a{", true),
            ("^a{1$", "a{1", true),
            ("^a{01}$", "a{01}", true),
            ("^a{x}{2}$", "a{x}}", true),
            ("^a{0}b{2,}$", "bb", true),
            ("^{+$", "{{", true),
            ("^(a{30}){30}$", "a", false),
            ("^a*?b{2,3}?$", "aabb", true),
            (r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\/x)?$", "a-b/x", true),
            (r"^\<\_\-\ $", "<_- ", true),
            (r"^\x41\x{1F600}\101\0\t$", "A\u{1F600}A\0\t", true),
            (r"^[\x00-\x1f\x7f]$", "\u{7f}", true),
            (r"^[^\x{D800}-\x{DFFF}]$", "a", true),
            (r"\x{D800}", "a", false),
            ("(?i)^straSSE$", "STRASSE", true),
            ("^(?i:a)b$", "AB", false),
            ("^(?i-i)a$", "A", false),
            ("^(?ii)a$", "A", true),
            ("^(?)a$", "a", true),
            (r"(?i)^\w$", "\u{212A}", true),
            (r"(?i)^\W$", "\u{212A}", false),
            ("(?m)^b$", "a\nb\nc", true),
            ("^a.b$", "a\nb", false),
            ("(?s)^a.b$", "a\nb", true),
            ("^(?P<x>a)(?<x>b)(?P<1>c)$", "abc", true),
            ("^(a||b)()$", "", true),
            ("^#~&$", "#~&", true),
        ] {
            let regex = compile(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            assert_eq!(regex.is_match(text), matches, "{pattern} on {text:?}");
        }
    }

    #[test]
    fn a_broken_pattern_is_explained_in_gos_words() {
        for (pattern, what, shown) in [
            ("(a", "missing closing )", "(a"),
            ("(", "missing closing )", "("),
            ("a)", "unexpected )", "a)"),
            ("(a|b))", "unexpected )", "(a|b))"),
            ("[", "missing closing ]", "["),
            ("x[a-z", "missing closing ]", "[a-z"),
            ("[]", "missing closing ]", "[]"),
            ("*", "missing argument to repetition operator", "*"),
            ("a|*?", "missing argument to repetition operator", "*?"),
            ("(+)", "missing argument to repetition operator", "+"),
            ("{2}", "missing argument to repetition operator", "{2}"),
            (r"\Q\E*", "missing argument to repetition operator", "*"),
            ("a{2000}", "invalid repeat count", "{2000}"),
            ("a{1001,}", "invalid repeat count", "{1001,}"),
            ("a{2,1}?", "invalid repeat count", "{2,1}"),
            ("a{1,99999999999999999999}", "invalid repeat count", "{1,99999999999999999999}"),
            ("(a{1000}){2}", "invalid repeat count", "{2}"),
            ("((a{100}b){10}c){2}", "invalid repeat count", "{2}"),
            ("a**", "invalid nested repetition operator", "**"),
            ("a*?{2}", "invalid nested repetition operator", "*?{2}"),
            ("a{2}+?b", "invalid nested repetition operator", "{2}+?"),
            ("(?=a)", "invalid or unsupported Perl syntax", "(?="),
            ("(?", "invalid or unsupported Perl syntax", "(?"),
            ("(?i", "invalid or unsupported Perl syntax", "(?i"),
            ("(?-)", "invalid or unsupported Perl syntax", "(?-)"),
            ("(?i-)", "invalid or unsupported Perl syntax", "(?i-)"),
            ("(?x)", "invalid or unsupported Perl syntax", "(?x"),
            ("(?<=a)", "invalid named capture", "(?<=a)"),
            ("(?P<x y>a)", "invalid named capture", "(?P<x y>"),
            ("(?P<>a)", "invalid named capture", "(?P<>"),
            ("(?P<name", "invalid named capture", "(?P<name"),
            (r"a\", "trailing backslash at end of expression", ""),
            (r"\1", "invalid escape sequence", r"\1"),
            (r"\8", "invalid escape sequence", r"\8"),
            (r"\y", "invalid escape sequence", r"\y"),
            (r"\C", "invalid escape sequence", r"\C"),
            (r"\é", "invalid escape sequence", r"\é"),
            (r"\x4", "invalid escape sequence", r"\x4"),
            (r"\x{}", "invalid escape sequence", r"\x{}"),
            (r"\x{110000}", "invalid escape sequence", r"\x{110000"),
            (r"[\b]", "invalid escape sequence", r"\b"),
            (r"[a-\d]", "invalid escape sequence", r"\d"),
            ("[z-a]", "invalid character class range", "z-a"),
            ("[a--b]", "invalid character class range", "a--"),
            ("[[:foo:]]", "invalid character class range", "[:foo:]"),
            (r"\p", "invalid character class range", r"\p"),
            (r"\pX", "invalid character class range", r"\pX"),
            (r"\p{Foo}", "invalid character class range", r"\p{Foo}"),
            (r"\p{Alphabetic}", "invalid character class range", r"\p{Alphabetic}"),
            (r"\p{gc=L}", "invalid character class range", r"\p{gc=L}"),
            (r"[\p{L]", "invalid character class range", r"\p{L]"),
        ] {
            assert_eq!(compile(pattern).unwrap_err(), format!("error parsing regexp: {what}: `{shown}`"), "{pattern}");
        }
    }

    #[test]
    fn a_pattern_that_would_take_much_memory_is_refused() {
        let repeated = format!("({}){{1000}}", "(xx?)".repeat(1000));
        for pattern in [&repeated, &r"\pL".repeat(1001), &"a".repeat(2 << 20)] {
            assert!(compile(pattern).unwrap_err().starts_with("error parsing regexp: expression too large: `"));
        }
        assert!(compile("((((a{1000}){1000}){1000}){1000})").is_err());
        assert!(compile(&"(".repeat(10_000)).is_err());
        let deep = format!("{}{}", "(".repeat(1000), ")".repeat(1000));
        assert_eq!(compile(&deep).unwrap_err(), format!("error parsing regexp: expression nests too deeply: `{deep}`"));
    }

    #[test]
    fn patterns_that_would_take_long_to_parse_or_compile_are_refused_before() {
        let many: String = ('\u{3400}'..='\u{7000}').step_by(2).collect();
        for pattern in [
            ".".repeat(100_000),
            "(.{100}){10}".repeat(10),
            r"[^a]{1000}".repeat(10),
            format!(r"[{many}{}]", r"\d".repeat(5000)),
            r"\pL{1000}".to_owned(),
            r"(\pL\pN){200}".to_owned(),
            r"\pL".repeat(130),
            r"\p{Zl}".repeat(2500),
            r"[\p{Greek}]".repeat(2000),
            format!("(?i){}", "[!-\u{1E943}]".repeat(10)),
            format!("(?i){}", r"[\Wx]".repeat(10)),
            format!("(?i){}", "[[:^alpha:]x]".repeat(10)),
            format!("(?i:{})", r"\pL".repeat(20)),
            r"(?i)\pC".repeat(1000),
        ] {
            let error = translate(&pattern).unwrap_err();
            assert!(error.contains(TOO_LARGE) && error.ends_with(EFFORT_ADVICE), "{pattern}");
        }
        compile(&format!("(?i){}", "[!-\u{1E943}]".repeat(4))).expect("it is small enough");
        compile(r"^[\pL\pN_-]{1,32}$").expect("it is small enough");
        compile("^.{1,1000}$").expect("it is small enough");
    }

    #[test]
    fn the_effort_counts_repetitions_and_characters_with_a_case() {
        assert!(effort("(a{200}){5}") > 4 * effort("a{200}"));
        assert!(effort("(a{1000}|b)c") > effort("a{1000}"));
        assert!(effort(r"(?i)\pL") > 5 * effort(r"\pL"));
        assert_eq!(effort(r"(?i)\x{D800}"), effort("(?i)a"));
        // Also refused patterns were read.
        assert!(effort(&format!(r"{}(", r"\p{Greek}".repeat(100))) > effort(&r"\p{Greek}".repeat(10)));
    }

    #[test]
    fn ordinary_patterns_take_a_hundredth_of_the_limit_of_a_schema() {
        for pattern in [
            r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
            r"^(\*\.)?[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$",
            r"^([A-Za-z0-9][-A-Za-z0-9_./]{0,251})?[A-Za-z0-9]$",
            r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
            r"^v?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$",
            r"^([0-9]{1,5}(h|m|s|ms)){1,4}$",
            r"^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$",
            r"^(([^:/?#]+):)?(//([^/?#]*))?([^?#]*)(\?([^#]*))?(#(.*))?",
            r"^(?:[a-zA-Z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._-][a-z0-9]+)*(?:/[a-z0-9]+(?:[._-][a-z0-9]+)*)*(?::[\w][\w.-]{0,127})?(?:@sha256:[a-f0-9]{64})?$",
            r"^((25[0-5]|(2[0-4]|1\d|[1-9]|)\d)\.?\b){4}$",
            r"^(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(Z|[+-]\d{2}:\d{2})$",
            r"^(?i)(GET|HEAD|POST|PUT|DELETE|CONNECT|OPTIONS|TRACE|PATCH)$",
            r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
            r"^(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$",
            r"^[\p{L}\p{Z}\p{N}_.:/=+\-@]*$",
        ] {
            compile(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            assert!(effort(pattern) < TOTAL_EFFORT_LIMIT / 100, "{pattern}: {}", effort(pattern));
        }
    }

    #[test]
    fn a_long_pattern_is_read_in_linear_time() {
        for part in ["{", "[[:", "(?i)", r"[^\W"] {
            let _ = translate(&part.repeat(300_000));
        }
    }
}
