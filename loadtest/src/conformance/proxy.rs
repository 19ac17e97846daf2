//! A proxy on the loopback that adds a token, because the suite has no option for one.
//!
//! Everything else passes as it is: methods, headers, statuses, and bodies in both directions piece by piece. Each
//! request has a connection of its own, which ends with its client. A `Host` or `Origin` that names the proxy becomes
//! that of the server behind it; any other stays, so that an evil one stays evil.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// What belongs to a connection and not to what it carries (RFC 9110, section 7.6.1).
const OF_THE_CONNECTION: [HeaderName; 5] =
    [header::CONNECTION, header::TE, header::TRAILER, header::TRANSFER_ENCODING, header::UPGRADE];

/// A running proxy. Ends when dropped.
pub struct Proxy {
    pub address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

struct Route {
    pool: Pool<HttpConnector, Incoming>,
    own: String,
    behind: Authority,
    token: HeaderValue,
}

impl Proxy {
    /// Stands before the server at `behind`.
    pub async fn start(behind: Authority, token: &str) -> std::io::Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let mut token = HeaderValue::try_from(format!("Bearer {token}")).map_err(std::io::Error::other)?;
        token.set_sensitive(true);
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let pool = Pool::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
        let route = Arc::new(Route { pool, own: address.to_string(), behind, token });
        #[expect(clippy::disallowed_methods, reason = "aborted when the proxy is dropped")]
        let serving = tokio::spawn(accept(listener, route));
        Ok(Self { address, serving })
    }
}

async fn accept(listener: TcpListener, route: Arc<Route>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).ok();
        let route = route.clone();
        connections.spawn(async move {
            let pass = service_fn(|request| pass(&route, request));
            // A client that is gone takes the request with it; nobody is left to be told of an error.
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), pass).await.ok();
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn pass(route: &Route, mut request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let target = Uri::builder().scheme(Scheme::HTTP).authority(route.behind.clone()).path_and_query(path).build();
    let target = match target {
        Ok(target) => target,
        Err(error) => return Ok(refusal(StatusCode::BAD_REQUEST, &error.to_string())),
    };
    *request.uri_mut() = target;
    rewrite(request.headers_mut(), route);
    match route.pool.request(request).await {
        Ok(mut answer) => {
            drop_of_the_connection(answer.headers_mut());
            Ok(answer.map(|body| body.boxed_unsync()))
        }
        Err(error) => Ok(refusal(StatusCode::BAD_GATEWAY, &format!("the proxy of the suite: {error}"))),
    }
}

fn rewrite(headers: &mut HeaderMap, route: &Route) {
    drop_of_the_connection(headers);
    headers.insert(header::AUTHORIZATION, route.token.clone());
    for (name, scheme) in [(header::HOST, ""), (header::ORIGIN, "http://")] {
        let own = headers.get(&name).is_some_and(|value| *value == format!("{scheme}{}", route.own));
        if let (true, Ok(value)) = (own, HeaderValue::try_from(format!("{scheme}{}", route.behind))) {
            headers.insert(name, value);
        }
    }
}

fn drop_of_the_connection(headers: &mut HeaderMap) {
    for name in OF_THE_CONNECTION {
        headers.remove(name);
    }
}

fn refusal(status: StatusCode, words: &str) -> Response<Body> {
    let body = Full::new(Bytes::copy_from_slice(words.as_bytes())).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;
    use crate::client::Client;
    use crate::upstream::{Reply, Speaks, Upstream};

    /// What is awaited comes at once, but the machine may be busy.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn route() -> Route {
        let pool = Pool::builder(TokioExecutor::new()).build(HttpConnector::new());
        Route {
            pool,
            own: "127.0.0.1:1".to_owned(),
            behind: Authority::from_static("127.0.0.1:2"),
            token: HeaderValue::from_static("Bearer t"),
        }
    }

    fn rewritten(host: &'static str, origin: &'static str) -> (String, String) {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static(host));
        headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
        rewrite(&mut headers, &route());
        assert_eq!(headers[header::AUTHORIZATION], "Bearer t");
        let text = |name| headers[name].to_str().expect("text").to_owned();
        (text(header::HOST), text(header::ORIGIN))
    }

    #[test]
    fn only_the_proxys_own_names_are_replaced() {
        let (host, origin) = rewritten("127.0.0.1:1", "http://127.0.0.1:1");
        assert_eq!((host.as_str(), origin.as_str()), ("127.0.0.1:2", "http://127.0.0.1:2"));
        let (host, origin) = rewritten("evil.example.com", "http://evil.example.com");
        assert_eq!((host.as_str(), origin.as_str()), ("evil.example.com", "http://evil.example.com"));
    }

    async fn before(upstream: &Upstream) -> Proxy {
        let behind = upstream.address.to_string().parse().expect("an authority");
        Proxy::start(behind, "secret").await.expect("started")
    }

    async fn until(condition: impl Fn() -> bool) {
        let waiting = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("it comes to pass");
    }

    async fn read_until(stream: &mut TcpStream, words: &str) {
        let mut got = String::new();
        let reading = async {
            while !got.contains(words) {
                let mut piece = [0; 1024];
                let length = stream.read(&mut piece).await.expect("read");
                assert!(length > 0, "the stream goes on");
                got.push_str(std::str::from_utf8(&piece[..length]).expect("text"));
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.expect("it comes");
    }

    #[tokio::test]
    async fn requests_pass_with_the_token() {
        let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("started");
        let proxy = before(&upstream).await;
        let client = Client::new(format!("http://{}", proxy.address));
        let answer = client.modern("/mcp", "tools/list", json!({})).await.expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(upstream.seen()[0].headers["authorization"], "Bearer secret");
        assert_eq!(upstream.seen()[0].headers["host"], upstream.address.to_string());
    }

    #[tokio::test]
    async fn a_stream_passes_event_by_event_and_ends_with_its_client() {
        let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("started");
        let proxy = before(&upstream).await;
        let client = Client::new(format!("http://{}", proxy.address));
        {
            let listen = client.modern("/mcp", "subscriptions/listen", json!({"notifications": {}}));
            tokio::select! {
                answer = listen => panic!("a stream without an end: {answer:?}"),
                () = until(|| upstream.listeners() == 1) => {}
            }
        }
        until(|| upstream.listeners() == 0).await;
        let mut stream = TcpStream::connect(proxy.address).await.expect("connected");
        let seen = upstream.seen().pop().expect("a request");
        let mut text = format!("POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n", seen.body.len());
        for name in ["content-type", "accept", "mcp-protocol-version", "mcp-method"] {
            text.push_str(&format!("{name}: {}\r\n", seen.headers[name].to_str().expect("text")));
        }
        stream.write_all(format!("{text}\r\n{}", seen.body).as_bytes()).await.expect("written");
        read_until(&mut stream, "acknowledged").await;
        upstream.set_tools(vec![]);
        read_until(&mut stream, "list_changed").await;
    }

    #[tokio::test]
    async fn a_call_ends_with_its_client() {
        let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("started");
        upstream.answers(|_| Reply::Hang);
        let proxy = before(&upstream).await;
        let client = Client::new(format!("http://{}", proxy.address));
        tokio::select! {
            answer = client.modern("/mcp", "tools/call", json!({"name": "t"})) => panic!("nothing answers: {answer:?}"),
            () = until(|| upstream.calls().len() == 1) => {}
        }
        drop(client);
        until(|| upstream.cancelled() == 1).await;
    }
}
