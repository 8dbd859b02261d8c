//! Addresses of the API server and of Services, for which no kubelet gets a serving certificate.

use fleetwright_api::names;
use fleetwright_kit::{Key, Pass};
use fleetwright_plan::join::ApiAddresses;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::Api;
use kube::api::ListParams;

use super::view::JoinCaches;
use crate::drain::ReadError;

/// The Service of the API server, and its EndpointSlice.
pub const SERVICE: &str = "kubernetes";
/// Namespace of both.
const NAMESPACE: &str = "default";
/// The calls that [`addresses`] makes.
pub const READS: u32 = 3;

/// Reads the addresses of the API server and of Services. Not every API server has an EndpointSlice of its own, or the kind ServiceCIDR.
///
/// # Errors
/// When the API server does not answer.
pub async fn addresses(pass: &Pass, caches: &JoinCaches) -> Result<ApiAddresses, ReadError> {
    let mut found = ApiAddresses::default();
    let service = Api::<Service>::namespaced(pass.client(), NAMESPACE).get_opt(SERVICE).await;
    let service = service.map_err(|error| ReadError::of(format!("Service {NAMESPACE}/{SERVICE}"), &error))?;
    let spec = service.and_then(|service| service.spec).unwrap_or_default();
    found.endpoints.extend(spec.cluster_ips.into_iter().flatten().chain(spec.cluster_ip));
    let slice = Api::<EndpointSlice>::namespaced(pass.client(), NAMESPACE).get_opt(SERVICE).await;
    let slice = slice.map_err(|error| ReadError::of(format!("EndpointSlice {NAMESPACE}/{SERVICE}"), &error))?;
    found.endpoints.extend(slice.and_then(|slice| slice.endpoints).into_iter().flatten().flat_map(|one| one.addresses));
    match Api::<ServiceCIDR>::all(pass.client()).list(&ListParams::default()).await {
        Ok(list) => {
            let specs = list.items.into_iter().filter_map(|one| one.spec);
            found.services.extend(specs.flat_map(|spec| spec.cidrs.unwrap_or_default()));
        }
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(ReadError::of("the ServiceCIDRs".to_owned(), &error)),
    }
    let values = caches.maps.get(&Key::new(&caches.namespace, names::CLUSTER_VALUES));
    if let Some(server) = values.as_ref().and_then(|values| values.data.get("server")) {
        found.add_url(server);
    }
    Ok(found)
}
