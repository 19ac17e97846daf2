//! The HTTP clients for upstreams. Addresses that admin-written URLs may not reach are refused at every connect.
//!
//! The check is made on the resolved address that is then connected to, so that a name cannot lead elsewhere in between.
//! Redirects are not followed.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use ipnet::IpNet;
use rollcall_shared::limits;
use rollcall_shared::task::Tasks;
use rollcall_shared::tenants::Owner;
use rollcall_shared::wire::{Failure, Reason};
use tower_service::Service;

use super::client::{Arriving, HttpClient, SendError};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Allow = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// One client for URLs of the operator's file, one for URLs that were written over the admin API.
pub(crate) struct Clients {
    file: HttpClient,
    store: HttpClient,
}

impl Clients {
    pub(crate) fn new(networks: Vec<IpNet>, tasks: &Tasks) -> io::Result<Self> {
        let allow: Allow = Arc::new(move |ip| is_public(ip) || networks.iter().any(|net| net.contains(&ip)));
        Ok(Self { file: client(Arc::new(|_| true), tasks.clone())?, store: client(allow, tasks.clone())? })
    }

    pub(crate) fn of(&self, owner: Owner) -> &HttpClient {
        match owner {
            Owner::File => &self.file,
            Owner::Store => &self.store,
        }
    }

    /// Keeps no connection from now on: each ends with its request.
    pub(crate) fn close(&self) {
        self.file.close();
        self.store.close();
    }

    /// Closes what was idle for long.
    pub(crate) fn sweep(&self) {
        self.file.sweep();
        self.store.sweep();
    }
}

fn client(allow: Allow, tasks: Tasks) -> io::Result<HttpClient> {
    let mut http =
        HttpConnector::new_with_resolver(GuardedResolver { inner: GaiResolver::new(), allow: allow.clone() });
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(limits::CONNECT_TIMEOUT));
    http.set_keepalive(Some(Duration::from_secs(60)));
    let https = HttpsConnectorBuilder::new()
        .with_native_roots()?
        .https_or_http()
        .enable_all_versions()
        .wrap_connector(Guarded { inner: http, allow });
    Ok(HttpClient::new(https, tasks))
}

fn denied(ip: IpAddr) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("the address {ip} may not be reached from here"))
}

#[derive(Clone)]
pub(crate) struct GuardedResolver {
    inner: GaiResolver,
    allow: Allow,
}

impl Service<Name> for GuardedResolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (resolving, allow) = (self.inner.call(name), self.allow.clone());
        Box::pin(async move {
            let addresses: Vec<SocketAddr> = tokio::time::timeout(limits::CONNECT_TIMEOUT, resolving)
                .await
                .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??
                .collect();
            match addresses.iter().find(|a| !allow(a.ip().to_canonical())) {
                Some(bad) => Err(denied(bad.ip())),
                None => Ok(addresses.into_iter()),
            }
        })
    }
}

/// Checks literal addresses, which never meet the resolver.
#[derive(Clone)]
pub(crate) struct Guarded {
    inner: HttpConnector<GuardedResolver>,
    allow: Allow,
}

impl Service<Uri> for Guarded {
    type Response = <HttpConnector<GuardedResolver> as Service<Uri>>::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let literal: Option<IpAddr> =
            uri.host().and_then(|host| host.trim_start_matches('[').trim_end_matches(']').parse().ok());
        if let Some(ip) = literal
            && !(self.allow)(ip.to_canonical())
        {
            return Box::pin(async move { Err(denied(ip).into()) });
        }
        let connecting = self.inner.call(uri);
        Box::pin(async move { connecting.await.map_err(Into::into) })
    }
}

/// Whether an address is on the public internet (IANA special-purpose registries, RFC 6890 and its successors).
fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    !(ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_documentation()
        || ip.is_multicast()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (b == 18 || b == 19)))
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = ip.segments();
    let embedded = |hi: u16, lo: u16| is_public_v4(Ipv4Addr::from((u32::from(hi) << 16) | u32::from(lo)));
    match (a, b) {
        (0x64, 0xff9b) => c == 0 && d == 0 && e == 0 && f == 0 && embedded(g, h), // NAT64, the well-known prefix alone
        (0x2002, _) => embedded(b, c),                                            // 6to4
        (0x2001, 0x0db8) => false,
        (0x2001, b) if b < 0x0200 => false, // Teredo and other protocol assignments
        _ => (a & 0xe000) == 0x2000,        // global unicast; everything else is special
    }
}

/// A body that could not be read.
pub(crate) enum ReadError {
    TooLarge,
    Broken(String),
}

/// Reads a whole body of at most `limit` bytes.
pub(crate) async fn read_capped(body: Arriving, limit: usize) -> Result<Bytes, ReadError> {
    if body.size_hint().lower() > limit as u64 {
        return Err(ReadError::TooLarge);
    }
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ReadError::TooLarge),
        Err(error) => Err(ReadError::Broken(error.to_string())),
    }
}

/// What a failed request means: whether anything may have been sent, and why.
pub(crate) fn send_failure(error: &SendError) -> Failure {
    let mut chain = Vec::new();
    let mut forbidden = false;
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        chain.push(cause.to_string());
        forbidden |= cause.downcast_ref::<io::Error>().is_some_and(|e| {
            e.kind() == io::ErrorKind::PermissionDenied && e.to_string().contains("may not be reached")
        });
        source = cause.source();
    }
    let detail = chain.join(": ");
    if forbidden {
        Failure::unsent(Reason::AddressForbidden, detail)
    } else {
        match error {
            SendError::Connect(_) | SendError::Unsent(_) => Failure::unsent(Reason::Unreachable, detail),
            SendError::Lost(_) => Failure::sent(Reason::ConnectionLost, detail),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_public() {
        for text in ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"] {
            assert!(is_public(text.parse().expect("an address")), "{text}");
        }
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "192.0.0.1",
            "198.18.0.1",
            "203.0.113.1",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::808:808",
            "2002:a00:1::",
            "2001::1",
            "2001:db8::1",
            "ff02::1",
        ] {
            assert!(!is_public(text.parse().expect("an address")), "{text}");
        }
    }
}
