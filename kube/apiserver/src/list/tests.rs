use super::*;

#[test]
fn a_token_says_where_to_go_on() {
    for (key, namespace) in [(Key::new("ns", "name"), ""), (Key::new("ns", "name"), "ns"), (Key::new("", "name"), "")] {
        let across = namespace.is_empty() && !key.namespace.is_empty();
        let text = Token::encode(&key, namespace, 227);
        let token = Token::decode(&text, across, namespace).unwrap();
        assert_eq!(token, Token { revision: Some(227), after: key });
    }
    assert_eq!(
        Token::encode(&Key::new("", "default"), "", 227),
        "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MjI3LCJzdGFydCI6Ii9kZWZhdWx0XHUwMDAwIn0"
    );
}

#[test]
fn a_token_of_an_expired_list_goes_on_in_the_present() {
    let text = Token::encode(&Key::new("", "x"), "", -1);
    assert_eq!(Token::decode(&text, false, "").unwrap().revision, None);
}

#[test]
fn a_broken_token_gets_the_real_servers_words() {
    let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
    for (token, expected) in [
        ("!!".to_owned(), "continue key is not valid: illegal base64 data at input byte 0"),
        ("abc".to_owned(), "continue key is not valid: invalid character 'i' looking for beginning of value"),
        (
            encode(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#),
            "continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
        ),
        (
            encode(r#"{"v":"meta.k8s.io/v1","rv":1,"start":""}"#),
            "continue key is not valid: encoded start key empty (version meta.k8s.io/v1)",
        ),
        (encode(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"../a"}"#), "continue key is not valid: ../a"),
        (encode(r#"{"v":"v9"}"#), "continue key is not valid: server does not recognize this encoded version v9"),
    ] {
        let error = Token::decode(&token, false, "").unwrap_err();
        assert_eq!((error.code, error.message), (400, format!("invalid continue token: {expected}")));
    }
}

fn mistakes(query: &str, watch: bool) -> Vec<String> {
    let query = Query::parse(Some(query));
    let options = ListOptions {
        resource_version: query.get("resourceVersion").map(str::to_owned),
        token: query.get("continue").map(str::to_owned),
        send_initial: query.optional_flag("sendInitialEvents"),
        ..ListOptions::default()
    };
    options.mistakes(query.get("resourceVersionMatch"), watch).iter().map(ToString::to_string).collect()
}

#[test]
fn options_that_do_not_go_together_are_forbidden() {
    for (query, watch, expected) in [
        ("resourceVersionMatch=Exact&resourceVersion=5", false, None),
        (
            "resourceVersionMatch=Exact",
            false,
            Some(
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
            ),
        ),
        (
            "resourceVersionMatch=Exact&resourceVersion=0",
            false,
            Some(
                "resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ),
        ),
        (
            "resourceVersionMatch=Foo&resourceVersion=1",
            false,
            Some(
                "resourceVersionMatch: Unsupported value: \"Foo\": supported values: \"Exact\", \"NotOlderThan\", \"\"",
            ),
        ),
        (
            "sendInitialEvents=true",
            false,
            Some("sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"),
        ),
        ("sendInitialEvents=true&resourceVersionMatch=NotOlderThan", true, None),
        (
            "sendInitialEvents=true",
            true,
            Some(
                "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ),
        ),
        (
            "resourceVersionMatch=NotOlderThan&resourceVersion=1",
            true,
            Some(
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            ),
        ),
    ] {
        assert_eq!(mistakes(query, watch).first().map(String::as_str), expected, "{query}");
    }
}

#[test]
fn a_resource_version_is_a_number_or_an_error_that_says_so() {
    assert_eq!(parse_revision("12").unwrap(), 12);
    let text = |text| parse_revision(text).unwrap_err().to_string();
    assert_eq!(
        text("abc"),
        "resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \"abc\": invalid syntax"
    );
    assert!(text("99999999999999999999").ends_with("value out of range"));
    assert!(text("+1").ends_with("invalid syntax"));
}

#[tokio::test(start_paused = true)]
async fn a_version_that_never_comes_is_too_large() {
    let error = wait_for(&Store::default(), 1000).await.unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (504, "Timeout: Too large resource version: 1000, current: 1"));
    assert_eq!(error.status()["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
}

fn configmaps() -> Arc<Resource> {
    crate::registry::Registry::default().find("", "v1", "configmaps").unwrap()
}

fn put(store: &Store, name: &str) {
    use crate::store::{Change, Draft, Precondition};
    let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "namespace": "a"}});
    let draft = Change::Put(Draft::new(&object, vec![], 0));
    store.commit(&configmaps().storage, &Key::new("a", name), Precondition::Absent, draft).unwrap();
}

async fn ask(store: &Store, query: &str) -> (u16, Value) {
    use http_body_util::BodyExt;
    let view = ResponseFormat::json(jiff::Timestamp::UNIX_EPOCH);
    let answer = list(store, &configmaps(), "", &Query::parse(Some(query)), &view).await;
    let answer = answer.unwrap_or_else(|error| crate::body::error(&error));
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap())
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn pages_show_one_moment_and_count_what_remains() {
    let store = Store::default();
    ["a", "b", "c"].iter().for_each(|name| put(&store, name));
    let (_, first) = ask(&store, "limit=2").await;
    assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["a", "b"], &1.into()));
    assert_eq!((&first["kind"], &first["items"][0]["kind"]), (&"ConfigMapList".into(), &Value::Null));
    put(&store, "d");
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, rest) = ask(&store, &format!("limit=2&continue={token}")).await;
    assert_eq!(names(&rest), ["c"]);
    assert_eq!(rest["metadata"], json!({"resourceVersion": first["metadata"]["resourceVersion"]}));
}

#[tokio::test]
async fn a_token_whose_moment_is_forgotten_is_answered_with_one_for_the_present() {
    let store = Store::default();
    ["a", "b", "c"].iter().for_each(|name| put(&store, name));
    let (_, first) = ask(&store, "limit=1").await;
    put(&store, "d");
    store.compact(store.revision());
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (code, expired) = ask(&store, &format!("limit=1&continue={token}")).await;
    assert_eq!((code, &expired["reason"]), (410, &"Expired".into()));
    let token = expired["metadata"]["continue"].as_str().unwrap();
    let (_, rest) = ask(&store, &format!("continue={token}")).await;
    assert_eq!(names(&rest), ["b", "c", "d"]);
    let (code, expired) = ask(&store, "resourceVersion=2&resourceVersionMatch=Exact").await;
    assert_eq!((code, expired["message"].as_str()), (410, Some(LIST_EXPIRED)));
}

#[tokio::test]
async fn a_long_list_leaves_in_pieces_that_make_one_document() {
    let store = Store::default();
    let name = |i: u32| format!("{i:04}-{}", "x".repeat(200));
    (0..1000).for_each(|i| put(&store, &name(i)));
    let (code, list) = ask(&store, "").await;
    assert_eq!((code, names(&list).len(), names(&list)[999]), (200, 1000, name(999).as_str()));
}

#[tokio::test]
async fn the_limit_does_not_count_for_a_list_of_any_version() {
    let store = Store::default();
    ["a", "b"].iter().for_each(|name| put(&store, name));
    assert_eq!(names(&ask(&store, "limit=1&resourceVersion=0").await.1), ["a", "b"]);
    assert_eq!(names(&ask(&store, "limit=1&resourceVersion=2").await.1), ["a"]);
    assert_eq!(names(&ask(&store, "fieldSelector=metadata.name%3Db").await.1), ["b"]);
}
