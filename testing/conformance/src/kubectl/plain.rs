//! Makes outputs comparable: what must differ between two servers becomes a word.

use regex::Regex;

/// The replacements, in this order.
const RULES: &[(&str, &str)] = &[
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uid>"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", "<time>"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?( [+-]\d{4})?( UTC)?", "<time>"),
    (r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}", "<time>"),
    (r"(?m)^[EWI]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [a-z_]+\.go:\d+\]", "<log>"),
    (r"X509SHA256=[0-9a-f]{64}", "X509SHA256=<digest>"),
    // The administrator and the cluster of each kubeconfig.
    (r"\b(kubernetes|fleetwright)-admin\b", "<admin>"),
    (r#"(Context ")[a-z-]+""#, "$1<cluster>\""),
    (r"eyJ[\w-]+\.[\w-]+\.[\w-]+", "<token>"),
    (r#"(resourceVersion"?: ?)"\d+""#, "$1<version>"),
    (r"(?m)^( *Resource Version: +)\d+", "$1<version>"),
    (r"https?://(127\.0\.0\.1|localhost):\d+", "<server>"),
    (r"10\.96\.\d+\.\d+", "<ip>"),
    (r"(NodePort: .*\s)3\d{4}/", "$1<port>/"),
    (r"(nodePort.?: )3\d{4}", "$1<port>"),
    (r":3\d{4}/TCP", ":<port>/TCP"),
    (r"kube-api-access-[a-z0-9]{5}", "kube-api-access-<suffix>"),
    (r"/tmp/(LIVE|MERGED)-\d+", "/tmp/$1"),
    (r"kubectl-edit-\d+\.yaml", "kubectl-edit.yaml"),
    // Client-side waits print their duration.
    (r"\b\d+(\.\d+)?(ms|µs)\b", "<age>"),
    (r"(^|[\s(])(<invalid>|<unknown>|\d+[ydhms](\d+[dhms])?)([\s,)]|$)", "$1<age>$4"),
    // Columns are as wide as what they hold. Indentation stays.
    (r"(?m)(\S)[ \t]{2,}", "$1  "),
    (r"(?m)[ \t]+$", ""),
];

/// Makes outputs plain.
pub struct Plain {
    rules: Vec<(Regex, &'static str)>,
}

impl Default for Plain {
    fn default() -> Self {
        let rules = RULES.iter().map(|(pattern, word)| (Regex::new(pattern).expect("a rule is a pattern"), *word));
        Self { rules: rules.collect() }
    }
}

impl Plain {
    /// The text with words in place of what must differ.
    pub fn plain(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (pattern, word) in &self.rules {
            if pattern.is_match(&text) {
                text = pattern.replace_all(&text, *word).into_owned();
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_of_any_width_leave_the_same_table() {
        let plain = Plain::default();
        let young = plain.plain("NAME   DATA   AGE\none    1      5s\n");
        assert_eq!(young, plain.plain("NAME   DATA   AGE\none    1      2m10s\n"));
        assert_eq!(young, "NAME  DATA  AGE\none  1  <age>\n");
    }

    #[test]
    fn indentation_and_meaning_stay() {
        let plain = Plain::default();
        let text = "metadata:\n  resourceVersion: \"12\"\n    name: web\n";
        assert_eq!(plain.plain(text), "metadata:\n  resourceVersion: <version>\n    name: web\n");
    }

    #[test]
    fn node_ports_are_words() {
        let plain = Plain::default();
        assert_eq!(plain.plain("80:31234/TCP"), "80:<port>/TCP");
        assert_eq!(plain.plain("  - nodePort: 31234"), "  - nodePort: <port>");
        assert_eq!(plain.plain("NodePort:  80  31234/TCP"), "NodePort:  80  <port>/TCP");
    }
}
