//! An issuer's keys: read from JWK sets (RFC 7517), each with the algorithms that its own kind allows.
//!
//! The algorithm is chosen by the key, never by the token's header (RFC 8725, section 3.1). A key set never yields a
//! shared-secret key, so that a public key cannot be played as an HMAC secret.

use std::collections::BTreeSet;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Validation};
use rollcall_shared::config::Issuer;
use rollcall_shared::limits;
use serde_json::Value;

/// One key, ready to verify with.
pub(super) struct VerifyKey {
    pub(super) kid: Option<String>,
    pub(super) key: DecodingKey,
    pub(super) validation: Validation,
}

/// All usable keys of an issuer.
#[derive(Default)]
pub(super) struct KeySet {
    pub(super) keys: Vec<VerifyKey>,
}

impl KeySet {
    /// The key of a header: by `kid`, or the only one there is where the header has none.
    pub(super) fn find(&self, kid: Option<&str>) -> Option<&VerifyKey> {
        match (kid, self.keys.as_slice()) {
            (Some(_), [only]) if only.kid.is_none() => Some(only),
            (Some(kid), keys) => keys.iter().find(|k| k.kid.as_deref() == Some(kid)),
            (None, [only]) => Some(only),
            (None, _) => None,
        }
    }

    /// Reads a JWK set. One odd entry does not spoil the others; a set without a usable key is an error.
    pub(super) fn read(text: &[u8], issuer: &Issuer) -> Result<Self, String> {
        #[derive(serde::Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let set: Set = serde_json::from_slice(text).map_err(|e| format!("no JWK set: {e}"))?;
        if set.keys.len() > limits::JWKS_KEYS {
            return Err(format!("more than {} keys", limits::JWKS_KEYS));
        }
        let keys: Vec<VerifyKey> = set
            .keys
            .into_iter()
            .filter_map(|mut value| {
                // RFC 9864 calls the algorithm by its curve.
                if let Some(alg) = value.get_mut("alg").filter(|alg| alg.as_str() == Some("Ed25519")) {
                    *alg = "EdDSA".into();
                }
                let jwk: Jwk = serde_json::from_value(value).ok()?;
                usable(&jwk, issuer)
            })
            .collect();
        if keys.is_empty() { Err("no key in the set can verify a signature".to_owned()) } else { Ok(Self { keys }) }
    }

    /// The one key of a shared secret.
    pub(super) fn shared_secret(secret: &str, issuer: &Issuer) -> Result<Self, String> {
        let key = DecodingKey::from_secret(secret.as_bytes()).map_err(|e| e.to_string())?;
        Ok(Self { keys: vec![VerifyKey { kid: None, key, validation: validation(vec![Algorithm::HS256], issuer) }] })
    }
}

fn usable(jwk: &Jwk, issuer: &Issuer) -> Option<VerifyKey> {
    let algorithms = algorithms(jwk);
    let first = *algorithms.first()?;
    let key = DecodingKey::from_jwk(jwk).ok()?;
    // The crate checks no lengths when it reads a key.
    let length = key.try_get_as_bytes().map_or(0, <[u8]>::len);
    let fits = match (key.family(), first) {
        (AlgorithmFamily::Ec, Algorithm::ES256) => length == 65,
        (AlgorithmFamily::Ec, Algorithm::ES384) => length == 97,
        (AlgorithmFamily::Ed, _) => length == 32,
        _ => true,
    };
    fits.then(|| VerifyKey { kid: jwk.common.key_id.clone(), key, validation: validation(algorithms, issuer) })
}

/// The algorithms that a key's own kind allows, narrowed by its `alg`, `use` and `key_ops`.
fn algorithms(jwk: &Jwk) -> Vec<Algorithm> {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    if matches!(&jwk.common.public_key_use, Some(u) if *u != PublicKeyUse::Signature)
        || matches!(&jwk.common.key_operations, Some(ops) if !ops.contains(&KeyOperations::Verify))
    {
        return Vec::new();
    }
    let by_key: &[Algorithm] = if let AlgorithmParameters::RSA(_) = &jwk.algorithm {
        &[RS256, RS384, RS512, PS256, PS384, PS512]
    } else if let AlgorithmParameters::EllipticCurve(p) = &jwk.algorithm {
        if p.curve == EllipticCurve::P256 {
            &[ES256]
        } else if p.curve == EllipticCurve::P384 {
            &[ES384]
        } else {
            &[]
        }
    } else if let AlgorithmParameters::OctetKeyPair(p) = &jwk.algorithm
        && p.curve == EllipticCurve::Ed25519
    {
        &[EdDSA]
    } else {
        &[] // shared secrets above all
    };
    match jwk.common.key_algorithm {
        None => by_key.to_vec(),
        Some(named) => Algorithm::try_from(named).ok().filter(|a| by_key.contains(a)).into_iter().collect(),
    }
}

fn validation(algorithms: Vec<Algorithm>, issuer: &Issuer) -> Validation {
    let mut validation = Validation::new(algorithms.first().copied().unwrap_or(Algorithm::ES256));
    validation.algorithms = algorithms;
    validation.leeway = limits::TOKEN_LEEWAY_S;
    validation.validate_exp = true;
    validation.validate_nbf = true;
    validation.validate_aud = true;
    validation.set_issuer(&[issuer.issuer.as_str()]);
    validation.set_audience(&[issuer.audience.as_str()]);
    // Without this an absent claim passes.
    validation.required_spec_claims = ["exp", "iss", "aud"].into_iter().map(str::to_owned).collect();
    let unique: BTreeSet<String> = validation.algorithms.iter().map(|a| format!("{a:?}")).collect();
    debug_assert_eq!(unique.len(), validation.algorithms.len());
    validation
}
