//! The script that starts the helper on a host, and delivers it first if it is missing.
//!
//! One line without single quotes and backslashes: it is an argument that any login shell can pass on to `sh`.

use crate::Helpers;

/// Markers between the script and us. They are unlike anything that a profile or a banner prints.
pub(crate) struct Markers {
    first: String,
    second: String,
}

impl Markers {
    pub(crate) fn new() -> Self {
        let word = || format!("{:016x}", fastrand::u64(..));
        Self { first: format!("fw{}", word()), second: word() }
    }

    /// The prefix of each line of the script. The script joins it from two halves: a shell that prints the command
    /// does not print this.
    pub(crate) fn mark(&self) -> String {
        format!("{}{}", self.first, self.second)
    }
}

/// A line of the script.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ScriptOutput {
    /// The helper is started.
    Ready,
    /// The helper is missing. The kernel's name, the machine, and the content of `/etc/os-release`.
    Missing { kernel: String, machine: String, os: String },
    /// The helper was delivered and is started; its version.
    Delivered { version: String },
    /// The delivery failed, and where.
    Failed { at: String },
}

impl ScriptOutput {
    /// Parses a line without its mark.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let line = line.trim();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "ready" => Some(Self::Ready),
            "missing" => {
                let mut parts = rest.splitn(3, ' ');
                let mut part = || parts.next().unwrap_or_default().trim().to_owned();
                Some(Self::Missing { kernel: part(), machine: part(), os: part() })
            }
            "delivered" => Some(Self::Delivered { version: rest.to_owned() }),
            "failed" => Some(Self::Failed { at: rest.to_owned() }),
            _ => None,
        }
    }
}

/// The command. With `verify` the helper's content is compared with its digest even if it was before.
///
/// The fast path runs no program but the helper: its name is its digest, and the file `DIGEST.ok` beside it is younger than the helper if its content
/// was compared since it was last written. Both are in a directory that only root can write. A hostile root there can make every
/// program on the host lie, so that no check on the host could detect it; this check is for accidents: torn writes, a mistaken
/// command, a failing disk.
pub(crate) fn start(words: &Markers, helpers: &Helpers, home: &str, verify: bool, root: bool) -> String {
    let digests = helpers.iter().map(|helper| helper.digest()).collect::<Vec<_>>().join(" ");
    let Markers { first, second } = words;
    let verify = u8::from(verify);
    let script = [
        format!("m={first};n={second};v={verify};H={home}/helper;"),
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin;LC_ALL=C;export PATH LC_ALL;umask 077;cd /;"
            .into(),
        r#"good(){ [ "$(sha256sum <$1)" = "$d  -" ]; };"#.into(),
        format!("for d in {digests};do h=$H/$d;"),
        "if [ -x $h ]&&{ [ $v = 0 ]&&[ $h.ok -nt $h ]||{ good $h&&{ touch $h.ok 2>/dev/null;true;};};};".into(),
        r#"then echo "$m$n ready";exec $h serve;fi;done;"#.into(),
        r#"echo "$m$n missing $(uname -s) $(uname -m)" $(grep -E "^(ID|VERSION_ID)=" /etc/os-release);"#.into(),
        "read -r d z||exit 0;h=$H/$d;t=$H/.$d.$$;".into(),
        r#"fail(){ rm -f $t;echo "$m$n failed $1";exit 1;};"#.into(),
        "mkdir -p $H||fail folder;head -c $z|gzip -dc >$t||fail write;good $t||fail digest;".into(),
        "chmod 700 $t&&mv -f $t $h||fail write;w=$($h version)||fail run;touch $h.ok;".into(),
        // Helpers of other versions stay for as long as they may be used: another operator observes this host as well, until the owner
        // mark limits it to that, and each would deliver its own at every observation. A helper that was not compared for 30 days is
        // deleted; each start of an operator compares its own.
        "find $H -type f -mmin +43200|while read -r o;do b=${o%.ok};".into(),
        "[ $b = $h ]||{ [ $o = $b ]&&[ -e $b.ok ];}||rm -f $b $b.ok;done;".into(),
        // Leftovers of deliveries that were interrupted long ago; deliveries of others may be running.
        r#"find $H -name ".*" -type f -mmin +60 -exec rm -f {} +;"#.into(),
        r#"echo "$m$n delivered $w";exec $h serve"#.into(),
    ]
    .concat();
    let sudo = if root { "" } else { "sudo -n " };
    format!("exec {sudo}sh -c '{script}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_passes_through_any_shell_and_does_not_hold_its_own_mark() {
        let words = Markers::new();
        let command = start(&words, &Helpers::default(), "/var/lib/fleetwright", true, false);
        assert!(command.starts_with("exec sudo -n sh -c '"), "{command}");
        assert_eq!(command.matches('\'').count(), 2, "{command}");
        assert!(!command.contains('\n') && !command.contains('\\') && !command.contains('!'), "{command}");
        assert!(!command.contains(&words.mark()), "{command}");
    }

    #[test]
    fn what_the_script_says_is_understood() {
        assert_eq!(ScriptOutput::parse(" ready\r"), Some(ScriptOutput::Ready));
        assert_eq!(
            ScriptOutput::parse(" missing Linux x86_64 ID=debian VERSION_ID=\"12\" "),
            Some(ScriptOutput::Missing {
                kernel: "Linux".into(),
                machine: "x86_64".into(),
                os: "ID=debian VERSION_ID=\"12\"".into()
            })
        );
        assert_eq!(
            ScriptOutput::parse(" missing"),
            Some(ScriptOutput::Missing { kernel: String::new(), machine: String::new(), os: String::new() })
        );
        assert_eq!(ScriptOutput::parse(" failed write"), Some(ScriptOutput::Failed { at: "write".into() }));
        assert_eq!(ScriptOutput::parse(" hello"), None);
    }
}
