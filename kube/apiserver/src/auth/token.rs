//! Service-account tokens: signed, bound to objects, and checked against them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{self, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fleetwright_rbac::{User, quote, quote_list};
use jiff::Timestamp;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::{Objects, text};

/// The tolerated clock skew in seconds.
const LEEWAY: i64 = 60;
/// The number of cached signature checks. Objects are looked up every time; only the signature check is saved.
const REMEMBERED: usize = 256;

/// Signs tokens with the server's key and verifies them.
pub struct TokenIssuer {
    issuer: String,
    audiences: Vec<String>,
    key: EcdsaKeyPair,
    key_id: String,
    /// Keys whose tokens are accepted: first the issuer's own.
    keys: Vec<PublicKey>,
    verified: Mutex<HashMap<[u8; 32], Arc<Claims>>>,
}

/// A public key that verifies tokens.
struct PublicKey {
    id: String,
    /// An uncompressed point of P-256: 4, then both coordinates.
    point: Vec<u8>,
}

impl PublicKey {
    /// From a SubjectPublicKeyInfo.
    fn of(der: &[u8]) -> Result<Self, String> {
        let (_, info) = SubjectPublicKeyInfo::from_der(der).map_err(|error| error.to_string())?;
        let point = info.subject_public_key.data.to_vec();
        if point.len() != 65 {
            return Err("a service-account key must be ECDSA P-256".to_owned());
        }
        Ok(Self { id: URL_SAFE_NO_PAD.encode(digest(&SHA256, der)), point })
    }

    /// From PEM, of a public key or of a private one.
    fn from_pem(pem: &str) -> Result<Self, String> {
        if let Ok(key) = SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes()) {
            return Self::of(&key);
        }
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|error| error.to_string())?;
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.secret_pkcs8_der());
        let key = key.map_err(|error| format!("a service-account key must be ECDSA P-256: {error}"))?;
        Self::of(key.public_key().as_der().map_err(|error| error.to_string())?.as_ref())
    }
}

/// The claims of a token to issue.
#[derive(Clone, Debug, Default)]
pub struct Grant {
    /// The service account's namespace.
    pub namespace: String,
    pub service_account: Bound,
    /// The audiences of the token.
    pub audiences: Vec<String>,
    /// The validity in seconds.
    pub seconds: i64,
    /// The time in seconds after which its use gets a warning; 0 for never.
    pub warn_after: i64,
    /// The pod that the token is bound to.
    pub pod: Option<Bound>,
    /// The secret that the token is bound to.
    pub secret: Option<Bound>,
    /// The node that the token is bound to, or, beside a pod, the node of the pod.
    pub node: Option<Bound>,
}

/// An object that a token is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bound {
    /// The object's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The object's uid.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

impl Bound {
    /// The object's name and uid.
    pub fn to(object: &Value) -> Self {
        Self { name: text(object, "/metadata/name").to_owned(), uid: text(object, "/metadata/uid").to_owned() }
    }
}

/// A signed token.
#[derive(Clone, Debug)]
pub struct Issued {
    pub token: String,
}

/// A valid token.
#[derive(Clone, Debug)]
pub struct Verified {
    /// The user of the token, without the group of authenticated users.
    pub user: User,
    /// The requested audiences that the token is valid for.
    pub audiences: Vec<String>,
}

/// The reason why a token is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// The token is not of this issuer.
    Foreign,
    /// The token is of this issuer and not valid.
    Invalid(String),
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("invalid bearer token"),
            Self::Invalid(why) => write!(f, "[invalid bearer token, {why}]"),
        }
    }
}

impl std::error::Error for TokenError {}

#[derive(Debug, Deserialize)]
struct Header {
    #[serde(default)]
    alg: String,
    #[serde(default)]
    kid: String,
}

#[derive(Debug, Deserialize)]
struct Claims {
    #[serde(default)]
    aud: Audience,
    #[serde(default)]
    exp: Option<i64>,
    #[serde(default)]
    iat: Option<i64>,
    #[serde(default)]
    nbf: Option<i64>,
    #[serde(default)]
    jti: String,
    #[serde(default, rename = "kubernetes.io")]
    kubernetes: Private,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Default for Audience {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Private {
    namespace: String,
    serviceaccount: Bound,
    pod: Option<Bound>,
    secret: Option<Bound>,
    node: Option<Bound>,
}

fn invalid(why: impl Into<String>) -> TokenError {
    TokenError::Invalid(why.into())
}

impl TokenIssuer {
    /// An issuer of this name (an `https` URL) that signs with a P-256 key in PKCS #8 PEM. The server itself accepts
    /// tokens for any of `audiences`; none given means the issuer's own name.
    pub fn new(issuer: impl Into<String>, audiences: Vec<String>, key_pem: &str) -> Result<Self, String> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(key_pem.as_bytes()).map_err(|error| error.to_string())?;
        Self::from_pkcs8(issuer.into(), audiences, der.secret_pkcs8_der())
    }

    /// An issuer with a key of its own.
    #[cfg(test)]
    pub fn generate(issuer: impl Into<String>, audiences: Vec<String>) -> Result<Self, String> {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        let document = document.map_err(|error| error.to_string())?;
        Self::from_pkcs8(issuer.into(), audiences, document.as_ref())
    }

    fn from_pkcs8(issuer: String, mut audiences: Vec<String>, der: &[u8]) -> Result<Self, String> {
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der);
        let key = key.map_err(|error| format!("the service-account key must be ECDSA P-256 in PKCS #8: {error}"))?;
        let public = key.public_key().as_der().map_err(|error| error.to_string())?;
        let own = PublicKey::of(public.as_ref())?;
        if audiences.is_empty() {
            audiences.push(issuer.clone());
        }
        Ok(Self { issuer, audiences, key, key_id: own.id.clone(), keys: vec![own], verified: Mutex::default() })
    }

    /// The same issuer, which also accepts tokens that these keys signed.
    pub fn accepting(mut self, pems: &[String]) -> Result<Self, String> {
        for pem in pems {
            let key = PublicKey::from_pem(pem)?;
            if self.keys.iter().all(|known| known.id != key.id) {
                self.keys.push(key);
            }
        }
        Ok(self)
    }

    /// The audiences that the server itself accepts.
    pub fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// Signs a token.
    pub fn issue(&self, grant: &Grant, now: Timestamp) -> Result<Issued, String> {
        let id = Uuid::new_v4().to_string();
        let seconds = now.as_second();
        let mut private = json!({"namespace": grant.namespace, "serviceaccount": grant.service_account});
        for (key, bound) in [("pod", &grant.pod), ("secret", &grant.secret), ("node", &grant.node)] {
            if let Some(bound) = bound {
                private[key] = json!(bound);
            }
        }
        if grant.warn_after != 0 {
            private["warnafter"] = json!(seconds.saturating_add(grant.warn_after));
        }
        let claims = json!({
            "iss": self.issuer,
            "sub": fleetwright_rbac::service_account_username(&grant.namespace, &grant.service_account.name),
            "aud": grant.audiences,
            "exp": seconds.saturating_add(grant.seconds),
            "iat": seconds,
            "nbf": seconds,
            "jti": id,
            "kubernetes.io": private,
        });
        let header = json!({"alg": "ES256", "kid": self.key_id});
        let encode = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let signed = format!("{}.{}", encode(&header), encode(&claims));
        let signature = self.key.sign(&SystemRandom::new(), signed.as_bytes()).map_err(|error| error.to_string())?;
        Ok(Issued { token: format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)) })
    }

    /// Checks a token: signature, time, audience (the server's own when none is requested), and that the account and
    /// the objects that it is bound to still exist.
    pub fn verify(
        &self,
        token: &str,
        audiences: &[String],
        objects: &dyn Objects,
        now: Timestamp,
    ) -> Result<Verified, TokenError> {
        let claims = self.claims(token)?;
        let own = match &claims.aud {
            Audience::One(one) => std::slice::from_ref(one),
            Audience::Many(many) => many.as_slice(),
        };
        let own = if own.is_empty() { &self.audiences } else { own };
        let wanted = if audiences.is_empty() { &self.audiences } else { audiences };
        let shared = own.iter().filter(|audience| wanted.contains(audience)).cloned().collect::<Vec<_>>();
        if shared.is_empty() {
            let (own, wanted) = (quote_list(own), quote_list(wanted));
            return Err(invalid(format!("token audiences {own} is invalid for the target audiences {wanted}")));
        }
        check_time(&claims, now)?;
        Ok(Verified { user: check_objects(&claims, objects, now)?, audiences: shared })
    }

    /// The claims of a token with a valid signature.
    fn claims(&self, token: &str) -> Result<Arc<Claims>, TokenError> {
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        let known = || self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(claims) = known().get(&fingerprint) {
            return Ok(claims.clone());
        }
        let claims = Arc::new(self.read(token)?);
        let mut verified = known();
        if verified.len() >= REMEMBERED {
            verified.clear();
        }
        verified.insert(fingerprint, claims.clone());
        Ok(claims)
    }

    fn read(&self, token: &str) -> Result<Claims, TokenError> {
        let mut parts = token.split('.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(TokenError::Foreign);
        };
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Foreign);
        let unverified: Value = serde_json::from_slice(&decode(payload)?).map_err(|_| TokenError::Foreign)?;
        if text(&unverified, "/iss") != self.issuer {
            return Err(TokenError::Foreign);
        }
        let head: Header = serde_json::from_slice(&decode(header)?).map_err(|_| TokenError::Foreign)?;
        let mut keys = self.keys.iter().filter(|key| head.kid.is_empty() || head.kid == key.id).peekable();
        if keys.peek().is_none() {
            return Err(invalid("invalid signature, no keys found"));
        }
        let signed = &token[..header.len() + 1 + payload.len()];
        let signature = decode(signature)?;
        let good = |key: &PublicKey| {
            let key = UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, &key.point);
            key.verify(signed.as_bytes(), &signature).is_ok()
        };
        // The server chooses the algorithm, never the token.
        if head.alg != "ES256" || !keys.any(good) {
            return Err(invalid("go-jose/go-jose: error in cryptographic primitive"));
        }
        serde_json::from_value(unverified).map_err(|_| {
            invalid("service account token claims could not be validated due to unexpected validation error")
        })
    }

    /// The document at `/.well-known/openid-configuration`, for a server that is reached at `host` (`address:port`).
    pub fn openid_configuration(&self, host: &str) -> String {
        let quoted = |text: &str| Value::from(text).to_string();
        format!(
            r#"{{"issuer":{},"jwks_uri":{},"response_types_supported":["id_token"],"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["ES256"]}}"#,
            quoted(&self.issuer),
            quoted(&format!("https://{host}/openid/v1/jwks")),
        )
    }

    /// The document at `/openid/v1/jwks` (`application/jwk-set+json`).
    pub fn jwks(&self) -> String {
        let key = |key: &PublicKey| {
            let (x, y) = key.point.get(1..).unwrap_or_default().split_at_checked(32).unwrap_or_default();
            format!(
                r#"{{"use":"sig","kty":"EC","kid":"{}","crv":"P-256","alg":"ES256","x":"{}","y":"{}"}}"#,
                key.id,
                URL_SAFE_NO_PAD.encode(x),
                URL_SAFE_NO_PAD.encode(y),
            )
        };
        format!(r#"{{"keys":[{}]}}"#, self.keys.iter().map(key).collect::<Vec<_>>().join(","))
    }
}

impl fmt::Debug for TokenIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenIssuer")
            .field("issuer", &self.issuer)
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

fn check_time(claims: &Claims, now: Timestamp) -> Result<(), TokenError> {
    let now = now.as_second();
    if claims.nbf.is_some_and(|start| now.saturating_add(LEEWAY) < start) {
        return Err(invalid("service account token is not valid yet"));
    }
    if claims.exp.is_some_and(|end| now.saturating_sub(LEEWAY) > end) {
        return Err(invalid("service account token has expired"));
    }
    if claims.iat.is_some_and(|issued| now.saturating_add(LEEWAY) < issued) {
        return Err(invalid("service account token is issued in the future"));
    }
    Ok(())
}

/// Whether an object was deleted longer ago than the tolerated clock skew.
fn is_gone(object: &Value, now: Timestamp) -> bool {
    let deleted = text(object, "/metadata/deletionTimestamp").parse::<Timestamp>();
    deleted.is_ok_and(|deleted| deleted.as_second() < now.as_second().saturating_sub(LEEWAY))
}

fn check_objects(claims: &Claims, objects: &dyn Objects, now: Timestamp) -> Result<User, TokenError> {
    let Private { namespace, serviceaccount, pod, secret, node } = &claims.kubernetes;
    let account = objects.get("serviceaccounts", namespace, &serviceaccount.name);
    let account =
        account.ok_or_else(|| invalid(format!("serviceaccounts {} not found", quote(&serviceaccount.name))))?;
    let uid = text(&account, "/metadata/uid");
    if uid != serviceaccount.uid {
        return Err(invalid(format!("service account UID ({uid}) does not match claim ({})", serviceaccount.uid)));
    }
    if is_gone(&account, now) {
        return Err(invalid(format!("service account {namespace}/{} has been deleted", serviceaccount.name)));
    }
    // A pod's node is only a claim about the pod; a node without a pod must still exist.
    let lone_node = node.as_ref().filter(|_| pod.is_none());
    let ties = [
        ("secrets", "secret", namespace.as_str(), secret.as_ref()),
        ("pods", "pod", namespace.as_str(), pod.as_ref()),
        ("nodes", "node", "", lone_node),
    ];
    for (resource, word, namespace, bound) in ties {
        let Some(bound) = bound else { continue };
        let object = objects.get(resource, namespace, &bound.name);
        let object = object.ok_or_else(|| invalid("service account token has been invalidated"))?;
        let uid = text(&object, "/metadata/uid");
        if uid != bound.uid {
            let claimed = &bound.uid;
            return Err(invalid(format!(
                "{word} UID ({uid}) does not match service account {word} ref claim ({claimed})"
            )));
        }
        if is_gone(&object, now) {
            return Err(invalid("service account token has been invalidated"));
        }
    }

    let mut user = User::service_account(namespace, &serviceaccount.name, &serviceaccount.uid);
    let mut tell = |key: &str, value: &str| {
        if !value.is_empty() {
            user.extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
        }
    };
    if let Some(pod) = pod {
        tell("pod-name", &pod.name);
        tell("pod-uid", &pod.uid);
    }
    if let Some(node) = node {
        tell("node-name", &node.name);
        tell("node-uid", &node.uid);
    }
    if !claims.jti.is_empty() {
        tell("credential-id", &format!("JTI={}", claims.jti));
    }
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(resource: &str, namespace: &str, name: &str) -> Option<Value> {
        match (resource, namespace, name) {
            ("serviceaccounts", "a", "bot") => Some(json!({"metadata": {"name": "bot", "uid": "u1"}})),
            ("pods", "a", "web") => Some(json!({"metadata": {"name": "web", "uid": "p1"}})),
            ("secrets", "a", "old") => {
                Some(json!({"metadata": {"name": "old", "uid": "s1", "deletionTimestamp": "2020-01-01T00:00:00Z"}}))
            }
            _ => None,
        }
    }

    fn bound(name: &str, uid: &str) -> Bound {
        Bound { name: name.to_owned(), uid: uid.to_owned() }
    }

    fn grant() -> Grant {
        Grant {
            namespace: "a".to_owned(),
            service_account: bound("bot", "u1"),
            audiences: vec!["https://here".to_owned()],
            seconds: 600,
            ..Grant::default()
        }
    }

    fn issuer() -> TokenIssuer {
        TokenIssuer::generate("https://here", Vec::new()).unwrap()
    }

    fn check(grant: &Grant) -> Result<Verified, TokenError> {
        let (issuer, now) = (issuer(), Timestamp::now());
        issuer.verify(&issuer.issue(grant, now).unwrap().token, &[], &store, now)
    }

    fn why(grant: &Grant) -> String {
        check(grant).unwrap_err().to_string()
    }

    #[test]
    fn a_token_stands_for_its_service_account() {
        let user = check(&grant()).unwrap().user;
        assert_eq!(user.name, "system:serviceaccount:a:bot");
        assert_eq!(user.uid, "u1");
        assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:a"]);
        assert!(user.extra["authentication.kubernetes.io/credential-id"][0].starts_with("JTI="));
    }

    #[test]
    fn a_pods_token_names_pod_and_node() {
        let user = check(&Grant { pod: Some(bound("web", "p1")), node: Some(bound("n", "")), ..grant() }).unwrap().user;
        assert_eq!(user.extra["authentication.kubernetes.io/pod-name"], ["web"]);
        assert_eq!(user.extra["authentication.kubernetes.io/node-name"], ["n"]);
        assert!(!user.extra.contains_key("authentication.kubernetes.io/node-uid"));
    }

    #[test]
    fn a_token_dies_with_what_it_is_bound_to() {
        let gone = "[invalid bearer token, service account token has been invalidated]";
        assert_eq!(why(&Grant { pod: Some(bound("none", "p1")), ..grant() }), gone);
        assert_eq!(why(&Grant { secret: Some(bound("old", "s1")), ..grant() }), gone);
        assert_eq!(
            why(&Grant { pod: Some(bound("web", "p0")), ..grant() }),
            "[invalid bearer token, pod UID (p1) does not match service account pod ref claim (p0)]"
        );
        assert_eq!(
            why(&Grant { service_account: bound("bot", "u0"), ..grant() }),
            "[invalid bearer token, service account UID (u1) does not match claim (u0)]"
        );
        assert_eq!(
            why(&Grant { service_account: bound("new", "u0"), ..grant() }),
            "[invalid bearer token, serviceaccounts \"new\" not found]"
        );
    }

    #[test]
    fn a_token_ends_at_its_time() {
        let (issuer, now) = (issuer(), Timestamp::now());
        let token = issuer.issue(&grant(), now).unwrap().token;
        let at = |seconds| issuer.verify(&token, &[], &store, now + jiff::SignedDuration::from_secs(seconds));
        assert!(at(650).is_ok());
        assert_eq!(at(700).unwrap_err(), invalid("service account token has expired"));
        assert_eq!(at(-100).unwrap_err(), invalid("service account token is not valid yet"));
    }

    #[test]
    fn a_token_for_others_is_not_for_us() {
        assert_eq!(
            why(&Grant { audiences: vec!["x".to_owned()], ..grant() }),
            r#"[invalid bearer token, token audiences ["x"] is invalid for the target audiences ["https://here"]]"#
        );
    }

    #[test]
    fn tokens_that_were_tampered_with_or_signed_by_others_are_refused() {
        let (ours, now) = (issuer(), Timestamp::now());
        let token = ours.issue(&grant(), now).unwrap().token;
        let forged = issuer().issue(&grant(), now).unwrap().token;
        let (body, signature) = token.rsplit_once('.').unwrap();
        let unsigned = format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#), body.split_once('.').unwrap().1);
        let claims = URL_SAFE_NO_PAD.encode(r#"{"iss":"https://here","sub":"system:serviceaccount:a:admin"}"#);
        let swapped = format!("{}.{claims}.{signature}", token.split_once('.').unwrap().0);
        for wrong in [forged, unsigned, swapped] {
            assert!(matches!(ours.verify(&wrong, &[], &store, now), Err(TokenError::Invalid(_))), "{wrong}");
        }
        for foreign in ["", "a", "a.b.c", "..", "\u{fc}.\u{fc}.\u{fc}", "a.b.c.d"] {
            assert_eq!(ours.verify(foreign, &[], &store, now).unwrap_err(), TokenError::Foreign, "{foreign}");
        }
    }

    #[test]
    fn the_key_set_names_the_key_that_signs() {
        let issuer = issuer();
        let keys: Value = serde_json::from_str(&issuer.jwks()).unwrap();
        let token = issuer.issue(&grant(), Timestamp::now()).unwrap().token;
        let header = URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap()).unwrap();
        let header: Value = serde_json::from_slice(&header).unwrap();
        assert_eq!(keys["keys"][0]["kid"], header["kid"]);
        assert_eq!(keys["keys"][0]["x"].as_str().unwrap().len(), 43);
        let configuration: Value = serde_json::from_str(&issuer.openid_configuration("h:1")).unwrap();
        assert_eq!(configuration["jwks_uri"], "https://h:1/openid/v1/jwks");
    }
}
