//! Mutual TLS between gateways and workers: both show a certificate that the same authority signed.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// See the module.
#[derive(Clone)]
pub struct WireTls {
    connector: TlsConnector,
    acceptor: TlsAcceptor,
}

fn bad(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl WireTls {
    /// Reads PEM files: the authority, and our own certificate with its key.
    pub fn read(authority: &Path, certificate: &Path, key: &Path) -> io::Result<Self> {
        let named = |path: &Path, error: &dyn std::fmt::Display| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()))
        };
        let read = |path: &Path| -> io::Result<Vec<CertificateDer<'static>>> {
            let certificates = CertificateDer::pem_file_iter(path).map_err(|e| named(path, &e))?;
            certificates.collect::<Result<Vec<_>, _>>().map_err(|e| named(path, &e))
        };
        let mut roots = RootCertStore::empty();
        for certificate in read(authority)? {
            roots.add(certificate).map_err(|e| named(authority, &e))?;
        }
        let roots = Arc::new(roots);
        let own = read(certificate)?;
        let private = PrivateKeyDer::from_pem_file(key).map_err(|e| named(key, &e))?;
        let client = ClientConfig::builder()
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(own.clone(), private.clone_key())
            .map_err(|e| named(certificate, &e))?;
        let verifier = WebPkiClientVerifier::builder(roots).build().map_err(bad)?;
        let server = ServerConfig::builder()
            .with_client_cert_verifier(verifier)
            .with_single_cert(own, private)
            .map_err(|e| named(certificate, &e))?;
        Ok(Self { connector: Arc::new(client).into(), acceptor: Arc::new(server).into() })
    }

    /// The worker's certificate must be for the host that it announces.
    pub(super) async fn connect(&self, address: &str, stream: TcpStream) -> io::Result<client::TlsStream<TcpStream>> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(bad)?;
        self.connector.connect(name, stream).await
    }

    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<server::TlsStream<TcpStream>> {
        self.acceptor.accept(stream).await
    }
}
