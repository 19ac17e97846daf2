//! Certificates of an authority of our own, as PEM files in a temporary folder.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use tempfile::TempDir;

/// See the module.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

/// A certificate with its key.
pub struct Certificate {
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
}

impl Authority {
    pub fn new(name: &str) -> Result<Self, String> {
        let text = |e: rcgen::Error| e.to_string();
        let mut parameters = CertificateParams::new(Vec::new()).map_err(text)?;
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().map_err(text)?;
        let issuer = CertifiedIssuer::self_signed(parameters, key).map_err(text)?;
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).map_err(|e| e.to_string())?;
        Ok(Self { issuer, folder })
    }

    pub fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A certificate for 127.0.0.1 and localhost, for servers and clients.
    pub fn certificate(&self, name: &str) -> Result<Certificate, String> {
        let text = |e: rcgen::Error| e.to_string();
        let hosts = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let mut parameters = CertificateParams::new(hosts).map_err(text)?;
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().map_err(text)?;
        let certificate = parameters.signed_by(&key, &self.issuer).map_err(text)?;
        let file = |kind: &str, content: String| {
            let path = self.folder.path().join(format!("{name}.{kind}.pem"));
            std::fs::write(&path, content).map(|()| path).map_err(|e| e.to_string())
        };
        Ok(Certificate { cert_file: file("cert", certificate.pem())?, key_file: file("key", key.serialize_pem())? })
    }
}
