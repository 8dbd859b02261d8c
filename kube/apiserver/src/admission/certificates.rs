//! Checks who may approve and sign certificate requests, and refuses some requests for every approver.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fleetwright_rbac::{Attributes, MASTERS};
use serde_json::Value;
use x509_parser::prelude::{FromDer, X509CertificationRequest};
use x509_parser::x509::X509Name;

use super::denial::forbidden;
use crate::error::ApiError;
use crate::write_request::WriteRequest;

const API_CLIENT: &str = "kubernetes.io/kube-apiserver-client";

/// Refuses requests for `system:masters`, so that an inattentive approver cannot create an unlimited administrator.
pub(super) fn create(op: &WriteRequest<'_>, request: &Value) -> Result<(), ApiError> {
    if request["spec"]["signerName"] != API_CLIENT {
        return Ok(());
    }
    let groups = organizations(request["spec"]["request"].as_str().unwrap_or_default())
        .map_err(|error| forbidden(op, request, format!("failed to parse CSR: {error}")))?;
    if groups.iter().any(|group| group == MASTERS) {
        let why = format!("use of {API_CLIENT} signer with system:masters group is not allowed");
        return Err(forbidden(op, request, why));
    }
    Ok(())
}

/// The organizations of a request, which become the groups of a user.
fn organizations(request: &str) -> Result<Vec<String>, String> {
    subject(request, |subject| {
        subject.iter_organization().filter_map(|name| name.as_str().ok()).map(str::to_owned).collect()
    })
}

/// The common names of a request, the last of which becomes the user.
pub(super) fn common_names(request: &str) -> Result<Vec<String>, String> {
    subject(request, |subject| {
        subject.iter_common_name().filter_map(|name| name.as_str().ok()).map(str::to_owned).collect()
    })
}

fn subject<T>(request: &str, read: impl FnOnce(&X509Name<'_>) -> T) -> Result<T, String> {
    let text = STANDARD.decode(request).map_err(|error| error.to_string())?;
    let (_, pem) =
        x509_parser::pem::parse_x509_pem(&text).map_err(|_| "PEM block type must be CERTIFICATE REQUEST".to_owned())?;
    let (_, parsed) = X509CertificationRequest::from_der(&pem.contents).map_err(|error| error.to_string())?;
    Ok(read(&parsed.certification_request_info.subject))
}

/// Approving needs the right to approve for the signer of the request.
pub(super) fn approve(op: &WriteRequest<'_>, old: &Value) -> Result<(), ApiError> {
    may(op, old, "approve")
}

/// Signing needs the right to sign for the signer of the request; a status update without a change does not.
pub(super) fn sign(op: &WriteRequest<'_>, old: &Value, new: &Value) -> Result<(), ApiError> {
    let same = |field: &str| old["status"][field] == new["status"][field];
    if same("certificate") && same("conditions") { Ok(()) } else { may(op, old, "sign") }
}

fn may(op: &WriteRequest<'_>, request: &Value, verb: &str) -> Result<(), ApiError> {
    let signer = request["spec"]["signerName"].as_str().unwrap_or_default();
    let whole_domain = format!("{}/*", signer.split('/').next().unwrap_or_default());
    let policy = op.server.policy();
    let allowed = [signer, &whole_domain].into_iter().any(|name| {
        let mut attributes = Attributes::resource(op.user, verb, "certificates.k8s.io", "signers").named(name);
        attributes.version = "*";
        policy.authorize(&attributes).allowed
    });
    if allowed {
        return Ok(());
    }
    Err(forbidden(op, request, format!("user not permitted to {verb} requests with signerName {signer:?}")))
}
