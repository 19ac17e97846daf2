//! An issuer of session tokens: keys of its own, a JWK set, tokens with whatever claims a test wants.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use jsonwebtoken::jwk::{Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rollcall_shared::clock::unix_s;
use serde_json::{Value, json};

/// One ES256 key with its public part.
#[derive(Clone)]
pub struct Issuer {
    pub name: String,
    pub audience: String,
    key: EncodingKey,
    jwk: Jwk,
    pub kid: String,
}

impl Issuer {
    /// A new key pair under a key id.
    pub fn new(name: &str, audience: &str, kid: &str) -> Result<Self, String> {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
            .map_err(|e| e.to_string())?;
        let key = EncodingKey::from_ec_der(document.as_ref());
        let mut jwk = Jwk::from_encoding_key(&key, Algorithm::ES256).map_err(|e| e.to_string())?;
        jwk.common.key_id = Some(kid.to_owned());
        jwk.common.public_key_use = Some(PublicKeyUse::Signature);
        Ok(Self { name: name.to_owned(), audience: audience.to_owned(), key, jwk, kid: kid.to_owned() })
    }

    /// `{"keys":[…]}` of these issuers' keys.
    pub fn jwks(issuers: &[&Issuer]) -> Value {
        json!({"keys": issuers.iter().map(|i| serde_json::to_value(&i.jwk).unwrap_or_default()).collect::<Vec<_>>()})
    }

    /// Claims of a good token for a tenant's session, valid for an hour.
    pub fn claims(&self, tenant: &str, session: &str) -> Value {
        json!({
            "iss": self.name, "aud": self.audience, "exp": unix_s() + 3600, "sub": "user-1",
            "tenant": tenant, "sid": session,
        })
    }

    /// A token for a tenant's session.
    pub fn token(&self, tenant: &str, session: &str) -> Result<String, String> {
        self.sign(&self.claims(tenant, session))
    }

    /// A token with exactly these claims.
    pub fn sign(&self, claims: &Value) -> Result<String, String> {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(self.kid.clone());
        jsonwebtoken::encode(&header, claims, &self.key).map_err(|e| e.to_string())
    }

    /// A token whose header is exactly this JSON, signed as it stands.
    pub fn sign_with_header(&self, header: &Value, claims: &Value) -> Result<String, String> {
        use base64_url as b64;
        let message = format!("{}.{}", b64(header.to_string().as_bytes()), b64(claims.to_string().as_bytes()));
        let signature =
            jsonwebtoken::crypto::sign(message.as_bytes(), &self.key, Algorithm::ES256).map_err(|e| e.to_string())?;
        Ok(format!("{message}.{signature}"))
    }

    /// The public key's coordinates as bytes, for attacks that play it as a shared secret.
    pub fn public_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(&self.jwk).unwrap_or_default()
    }
}

/// Base64 for URLs, without padding (RFC 4648, section 5).
pub fn base64_url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let digit = |n: u32| char::from(*DIGITS.get((n & 63) as usize).unwrap_or(&b'A'));
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let n = byte(0) << 16 | byte(1) << 8 | byte(2);
        let all = [digit(n >> 18), digit(n >> 12), digit(n >> 6), digit(n)];
        out.extend(all.iter().take(chunk.len() + 1));
    }
    out
}
