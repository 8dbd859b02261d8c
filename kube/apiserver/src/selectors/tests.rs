use super::*;

fn selects(selector: &str, labels: &[(&str, &str)]) -> bool {
    let selector = LabelSelector::parse(selector).unwrap();
    selector.matches(|name| labels.iter().find(|(known, _)| *known == name).map(|(_, value)| *value))
}

#[test]
fn label_selectors_select_what_the_real_ones_do() {
    let labels = [("app", "web"), ("n", "5"), ("empty", ""), ("in", "notin")];
    for (selector, expected) in [
        ("", true),
        ("app=web", true),
        ("app==web", true),
        ("app = web , n", true),
        ("app!=web", false),
        ("other!=web", true),
        ("app in (db,web)", true),
        ("app in (db)", false),
        ("app notin (db)", true),
        ("other notin (db)", true),
        ("other in (db)", false),
        ("app,!other", true),
        ("!app", false),
        ("n>4", true),
        ("n<5", false),
        ("app>1", false),
        ("empty=", true),
        ("empty in ()", true),
        ("empty in (,x)", true),
        ("app in (x,,web)", true),
        ("in in (notin)", true),
        ("app=", false),
    ] {
        assert_eq!(selects(selector, &labels), expected, "{selector}");
    }
}

#[test]
fn a_broken_label_selector_gets_the_real_servers_words() {
    for (selector, expected) in [
        ("x=(", "unable to parse requirement: found '(', expected: identifier"),
        ("=x", "found '=', expected: !, identifier, or 'end of string'"),
        ("x,", "found '', expected: identifier after ','"),
        ("x y", "unable to parse requirement: found 'y', expected: in, notin, =, ==, !=, gt, lt"),
        ("x in a", "unable to parse requirement: found 'a' expected: '('"),
        ("x in (a", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("x in (=)", "unable to parse requirement: found '=', expected: ',', ')' or identifier"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        ("a=b)", "found ')', expected: ',' or 'end of string'"),
        ("!x=1", "found '=', expected: ',' or 'end of string'"),
        (
            "x>y",
            "unable to parse requirement: values[0]: Invalid value: \"y\": for 'Gt', 'Lt' operators, the value must be an integer",
        ),
    ] {
        assert_eq!(LabelSelector::parse(selector).unwrap_err(), expected, "{selector}");
    }
    let key = LabelSelector::parse("a/b/c=d").unwrap_err();
    assert!(key.starts_with("unable to parse requirement: <nil>: Invalid value: \"a/b/c\": a valid label key must"));
    let value = LabelSelector::parse("a=-").unwrap_err();
    assert!(
        value.starts_with("unable to parse requirement: values[0][a]: Invalid value: \"-\": a valid label must be")
    );
}

fn field_selector(text: &str) -> Result<FieldSelector, String> {
    FieldSelector::parse(text, |field| match field {
        "spec.host" => Ok("spec.nodeName".into()),
        "nope" => Err("field label not supported: nope".into()),
        other => Ok(other.into()),
    })
}

#[test]
fn field_selectors_know_equal_unequal_escapes_and_old_names() {
    let fields = [("metadata.name", "a,b=c\\"), ("spec.nodeName", "n1")];
    for (text, expected) in [
        ("", true),
        ("metadata.name=a\\,b\\=c\\\\", true),
        ("spec.host=n1", true),
        ("spec.nodeName==n1,missing=", true),
        ("spec.nodeName!=n1", false),
        ("missing!=x,", true),
        ("missing=x", false),
    ] {
        let selector = field_selector(text).unwrap();
        let found = selector.matches(|path| fields.iter().find(|f| f.0 == path).map(|f| f.1));
        assert_eq!(found, expected, "{text}");
    }
    assert_eq!(field_selector("metadata.name=x").unwrap().exact("metadata.name"), Some("x"));
}

#[test]
fn a_broken_field_selector_gets_the_real_servers_words() {
    for (text, expected) in [
        ("abc", "invalid selector: 'abc'; can't understand 'abc'"),
        ("a=b=c", "invalid field selector: unescaped character in value: 61"),
        ("a=b\\x", "invalid field selector: invalid escape sequence: \\x"),
        ("a=b\\", "invalid field selector: invalid escape sequence: \\"),
        ("nope=1", "field label not supported: nope"),
    ] {
        assert_eq!(field_selector(text).unwrap_err(), expected);
    }
}

#[test]
fn no_text_makes_a_selector_panic() {
    let alphabet = ["a", "=", "!", "(", ")", ",", "<", ">", " in ", "\\", "é", "\0", "/"];
    for i in 0..alphabet.len().pow(4) {
        let text: String = (0..4).map(|digit| alphabet[i / alphabet.len().pow(digit) % alphabet.len()]).collect();
        let _ = (LabelSelector::parse(&text), field_selector(&text));
    }
}
