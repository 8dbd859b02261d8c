//! `/metrics`, `/healthz`, `/readyz`.
