use proptest::prelude::*;

use super::*;

fn labels(machine: &str, reporter: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(names::MACHINE.to_owned(), machine.to_owned()), (names::REPORTER.to_owned(), reporter.to_owned())])
}

fn data(conditions: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(names::REPORT_DATA.to_owned(), conditions.to_owned())])
}

fn read(conditions: &str) -> Result<Report, Broken> {
    Report::read("host-17.log-agent", &labels("host-17", "log-agent"), &data(conditions))
}

#[test]
fn a_report_says_what_its_conditions_say() {
    let report = read(
        r#"[{"type":"LogAgentReady","status":"True","reason":"DaemonSetReady","heartbeat":"2026-11-15T08:00:00Z"},
            {"type":"DiskHealthy","status":"Unknown","message":"smartctl does not answer\nsince noon"}]"#,
    )
    .unwrap();
    assert_eq!((report.machine.as_str(), report.reporter.as_str()), ("host-17", "log-agent"));
    assert_eq!(report.conditions[0].status, Status::True);
    assert_eq!(report.conditions[0].reason, "DaemonSetReady");
    assert_eq!(report.conditions[0].heartbeat, Some("2026-11-15T08:00:00Z".parse().unwrap()));
    assert_eq!(report.conditions[1].message, "smartctl does not answer\nsince noon");
    assert_eq!(report.conditions[1].heartbeat, None);
}

#[test]
fn a_report_may_say_nothing() {
    assert_eq!(read("[]").unwrap().conditions, []);
}

#[test]
fn a_broken_entry_is_named_with_what_is_allowed() {
    let long = format!(r#"[{{"type":"A","status":"True","message":"{}"}}]"#, "é".repeat(MAX_MESSAGE + 1));
    let many = serde_json::to_string(&vec![serde_json::json!({}); MAX_CONDITIONS + 1]).unwrap();
    let huge = format!("[{}]", " ".repeat(MAX_BYTES));
    for (conditions, parts) in [
        ("", &["data.conditions is not JSON"] as &[_]),
        ("- type: A", &["is not JSON"]),
        (r#"{"type":"A","status":"True"}"#, &["is an object", "JSON list"]),
        ("[7]", &["data.conditions[0] is a number"]),
        (r#"[{"status":"True"}]"#, &["[0].type is missing"]),
        (r#"[{"type":"A"}]"#, &["[0].status is missing", "True, False or Unknown"]),
        (r#"[{"type":"A","status":"true"}]"#, &["[0].status is \"true\"", "True, False or Unknown"]),
        (r#"[{"type":"A","status":true}]"#, &["[0].status is a boolean"]),
        (r#"[{"type":"a b","status":"True"}]"#, &["[0].type is \"a b\"", "CamelCase"]),
        (r#"[{"type":"","status":"True"}]"#, &["[0].type is \"\"", "CamelCase"]),
        (r#"[{"type":"Schedulable","status":"True"}]"#, &["[0].type is Schedulable", "your own"]),
        (r#"[{"type":"ReportsValid","status":"True"}]"#, &["your own"]),
        (r#"[{"type":"Reachable","status":"True"}]"#, &["your own"]),
        (r#"[{"type":"PackagesReady","status":"True"}]"#, &["your own"]),
        (r#"[{"type":"A","status":"True"},{"type":"A","status":"False"}]"#, &["[1].type", "second time"]),
        (r#"[{"type":"A","status":"True","reason":"so it is"}]"#, &["[0].reason is \"so it is\"", "CamelCase"]),
        (r#"[{"type":"A","status":"True","message":"\u001b[31mred"}]"#, &["[0].message", "\\u{1b}"]),
        (r#"[{"type":"A","status":"True","heartbeat":"noon"}]"#, &["[0].heartbeat is \"noon\"", "such as 2026"]),
        (r#"[{"type":"A","status":"True","heartbeat":null}]"#, &["[0].heartbeat is null"]),
        (r#"[{"type":"A","status":"True","color":"red"}]"#, &["[0].\"color\" is not known", "heartbeat"]),
        (&long, &["[0].message", "1025", "1024"]),
        (&many, &["33", "at most 32"]),
        (&huge, &["at most 65536"]),
    ] {
        let Broken(message) = read(conditions).expect_err(conditions);
        assert!(message.starts_with("ConfigMap \"host-17.log-agent\": data.conditions"), "{message}");
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
    }
}

#[test]
fn a_report_without_its_labels_says_which_is_missing() {
    for missing in [names::MACHINE, names::REPORTER] {
        let mut labels = labels("host-17", "log-agent");
        labels.remove(missing);
        let Broken(message) = Report::read("host-17.log-agent", &labels, &data("[]")).unwrap_err();
        assert!(message.contains(&format!("the label {missing} is missing")), "{message}");
    }
    let Broken(message) =
        Report::read("host-17.log-agent", &labels("host-17", "log-agent"), &BTreeMap::new()).unwrap_err();
    assert!(message.contains("data.conditions is missing"), "{message}");
}

#[test]
fn a_report_speaks_only_for_the_machine_and_reporter_in_its_name() {
    for (name, machine, reporter) in [
        ("host-17.log-agent", "host-18", "log-agent"),
        ("host-17.log-agent", "host-17", "other"),
        ("host-17", "host-17", "log-agent"),
        // The combined name would be valid for both; a reporter has no dots.
        ("a.b.c", "a", "b.c"),
    ] {
        let Broken(message) = Report::read(name, &labels(machine, reporter), &data("[]")).unwrap_err();
        assert!(message.contains("must be"), "{message}");
    }
    assert_eq!(Report::read("a.b.c", &labels("a.b", "c"), &data("[]")).unwrap().machine, "a.b");
}

#[test]
fn a_heartbeat_from_the_future_is_broken_and_one_of_a_clock_slightly_ahead_is_not() {
    let now: Timestamp = "2026-11-15T08:00:00Z".parse().unwrap();
    let at = |time: &str| read(&format!(r#"[{{"type":"A","status":"True","heartbeat":"{time}"}}]"#)).unwrap();
    assert_eq!(at("2026-11-15T08:01:00Z").check_time(now), Ok(()));
    assert_eq!(at("1970-01-01T00:00:00Z").check_time(now), Ok(()));
    assert_eq!(read(r#"[{"type":"A","status":"True"}]"#).unwrap().check_time(now), Ok(()));
    let Broken(message) = at("2026-11-15T08:01:01Z").check_time(now).unwrap_err();
    assert!(message.contains("data.conditions[0].heartbeat (A) is 2026-11-15T08:01:01Z"), "{message}");
    assert!(at("9999-12-30T22:00:00Z").check_time(Timestamp::MIN).is_err());
}

/// Mostly valid reports, so that each has one error at a time.
fn json() -> impl Strategy<Value = String> {
    fn text(pattern: &'static str, wrong: impl Strategy<Value = Value> + 'static) -> impl Strategy<Value = Value> {
        prop_oneof![20 => pattern.prop_map(Value::from), 1 => wrong]
    }
    let wrong = || prop_oneof![Just(Value::Null), any::<i64>().prop_map(Value::from), ".{0,40}".prop_map(Value::from)];
    let entry = (
        text("[A-Z][A-Za-z0-9]{0,8}", prop_oneof![Just("Schedulable".into()), wrong()]),
        text("True|False|Unknown", wrong()),
        prop::option::of(text("[A-Z][A-Za-z]{0,8}", wrong())),
        prop::option::of(text("[ -~é\n]{0,40}", wrong())),
        prop::option::of(text("20[0-9]{2}-0[1-9]-1[0-9]T0[0-9]:[0-5][0-9]:00Z", wrong())),
        prop::option::weighted(0.02, Just(Value::from("more"))),
    );
    let entry = entry.prop_map(|(type_, status, reason, message, heartbeat, more)| {
        let mut entry = serde_json::json!({"type": type_, "status": status});
        for (field, value) in [("reason", reason), ("message", message), ("heartbeat", heartbeat), ("more", more)] {
            if let Some(value) = value {
                entry[field] = value;
            }
        }
        entry
    });
    prop::collection::vec(entry, 0..4).prop_map(|entries| Value::from(entries).to_string())
}

proptest! {
    #[test]
    fn no_text_makes_reading_panic(name in ".{0,20}", machine in ".{0,10}", reporter in ".{0,10}", text in "\\PC{0,200}") {
        let _ = Report::read(&name, &labels(&machine, &reporter), &data(&text));
        let _ = Report::read(&format!("{machine}.{reporter}"), &labels(&machine, &reporter), &data(&text));
    }

    #[test]
    fn no_bytes_make_reading_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn what_is_read_keeps_every_limit(text in json()) {
        if let Ok(report) = read(&text) {
            prop_assert!(report.conditions.len() <= MAX_CONDITIONS);
            for (index, condition) in report.conditions.iter().enumerate() {
                prop_assert!(is_camel_case(&condition.type_) && !RESERVED.contains(&condition.type_.as_str()));
                prop_assert!(!condition.message.chars().any(|c| c.is_control() && c != '\n'));
                prop_assert!(report.conditions[..index].iter().all(|other| other.type_ != condition.type_));
            }
            // The value is the same after it is written and read again.
            let again = serde_json::to_string(&report.conditions).unwrap();
            prop_assert_eq!(read(&again).unwrap(), report);
        }
    }
}
