//! Authentication of requests.

use fleetwright_rbac::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, User};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use jiff::Timestamp;

use super::{ClientCertificate, Objects, TokenIssuer, bootstrap_token};
use crate::error::ApiError;

/// Authenticates a request: by client certificate, else by bearer token, else as anonymous.
#[derive(Clone, Copy, Debug)]
pub struct Authenticator<'a> {
    /// Verifies tokens.
    pub issuer: &'a TokenIssuer,
    /// The objects to which tokens are bound.
    pub objects: &'a dyn Objects,
}

impl std::fmt::Debug for dyn Objects + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Objects")
    }
}

impl Authenticator<'_> {
    /// The user of the request. Invalid credentials give a 401; missing credentials give the anonymous user.
    pub fn authenticate(
        &self,
        certificate: Option<&ClientCertificate>,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<User, ApiError> {
        let by_certificate = certificate.map_or(Ok(None), |certificate| certificate.user(now));
        if let Ok(Some(user)) = by_certificate {
            return Ok(authenticated(user));
        }
        let by_token = bearer_token(headers).map(|token| match bootstrap_token::user(token, self.objects, now) {
            Some(user) => Ok(user),
            None => self.issuer.verify(token, &[], self.objects, now).map(|verified| verified.user),
        });
        match (by_token, by_certificate) {
            (Some(Ok(user)), _) => Ok(authenticated(user)),
            (None, Ok(_)) => Ok(User::anonymous()),
            (Some(Err(_)), _) | (None, Err(_)) => Err(ApiError::unauthorized()),
        }
    }
}

/// Adds the group of authenticated users, unless the user is anonymous.
pub fn authenticated(mut user: User) -> User {
    if user.name != ANONYMOUS && !user.is_in(UNAUTHENTICATED) {
        user.ensure_group(AUTHENTICATED);
    }
    user
}

/// The token of an `Authorization: Bearer` header; other schemes and empty tokens are ignored.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let mut parts = header.splitn(3, ' ');
    let scheme = parts.next()?;
    let token = parts.next()?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Bound, Grant};
    use super::*;

    fn store(resource: &str, _: &str, name: &str) -> Option<Value> {
        (resource == "serviceaccounts" && name == "bot").then(|| json!({"metadata": {"name": "bot", "uid": "1"}}))
    }

    fn ask(issuer: &TokenIssuer, authorization: Option<&str>) -> Result<User, ApiError> {
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization {
            headers.insert(AUTHORIZATION, value.parse().unwrap());
        }
        Authenticator { issuer, objects: &store }.authenticate(None, &headers, Timestamp::now())
    }

    fn issuer() -> TokenIssuer {
        TokenIssuer::generate("https://here", Vec::new()).unwrap()
    }

    #[test]
    fn without_credentials_the_sender_is_anonymous() {
        for header in [None, Some("Basic eA=="), Some("Bearer "), Some("Bearer")] {
            assert_eq!(ask(&issuer(), header).unwrap(), User::anonymous(), "{header:?}");
        }
    }

    #[test]
    fn a_bad_token_is_unauthorized_and_not_anonymous() {
        let error = ask(&issuer(), Some("Bearer x")).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (401, "Unauthorized"));
    }

    #[test]
    fn a_service_account_is_among_the_authenticated() {
        let issuer = issuer();
        let grant = Grant {
            namespace: "a".to_owned(),
            service_account: Bound { name: "bot".to_owned(), uid: "1".to_owned() },
            audiences: issuer.audiences().to_vec(),
            seconds: 600,
            ..Grant::default()
        };
        let token = issuer.issue(&grant, Timestamp::now()).unwrap().token;
        let user = ask(&issuer, Some(&format!("bearer {token}"))).unwrap();
        assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"]);
    }
}
