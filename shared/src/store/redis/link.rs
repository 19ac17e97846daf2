//! Connections to the shared store.
//!
//! Two: one for reads, beats and notifications, one for writes, so that waiting for replicas stalls no read. While the
//! store does not answer its beats, whoever asks is refused at once. The link of redis-rs that reconnects by itself knows
//! nothing of Sentinel and forgets failed subscriptions, so this one is made anew as a whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, IntoConnectionInfo, Pipeline, ProtocolVersion,
    PushInfo, PushKind, RedisConnectionInfo, RedisError, RedisFuture, RedisResult, TlsCertificates, TlsMode, Value,
};
use tokio::sync::Notify;

use super::settings::{RedisSettings, Topology};
use crate::limits;
use crate::store::StoreError;

/// A connection to one server or to a cluster. Cheap to clone.
#[derive(Clone)]
pub(super) enum Connection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Connection::One(connection) => connection.req_packed_command(cmd),
            Connection::Cluster(connection) => connection.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Connection::One(connection) => connection.req_packed_commands(pipeline, offset, count),
            Connection::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Connection::One(connection) => connection.get_db(),
            Connection::Cluster(connection) => connection.get_db(),
        }
    }
}

impl Connection {
    /// A command to the master that has `key`; commands like WAIT name no key themselves.
    pub(super) async fn at_master_of(&mut self, key: &str, command: Cmd) -> RedisResult<Value> {
        match self {
            Connection::One(connection) => connection.send_packed_command(&command).await,
            Connection::Cluster(connection) => {
                let route = Route::with_key(key, SlotAddr::Master);
                let route = RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(route));
                connection.route_command(command, route).await
            }
        }
    }

    pub(super) async fn subscribe(&mut self, channels: &[String]) -> RedisResult<()> {
        match self {
            Connection::One(connection) => connection.subscribe(channels).await,
            Connection::Cluster(connection) => {
                for channel in channels {
                    connection.ssubscribe(channel).await?;
                }
                Ok(())
            }
        }
    }
}

/// What a notification calls: channel and payload.
pub(super) type OnMessage = Arc<dyn Fn(&[u8], &[u8]) + Send + Sync>;

/// See the module.
pub(super) struct Link {
    pub(super) settings: RedisSettings,
    certificates: Option<TlsCertificates>,
    reads: ArcSwapOption<Connection>,
    writes: tokio::sync::Mutex<Option<Connection>>,
    /// Counts the connections for writes: what one has written, only it can wait for.
    opened: AtomicU64,
    /// The store does not answer at the moment: asking it would only take time.
    silent: AtomicBool,
    lost: Notify,
}

/// An error of the client as one of ours. What the server says about types and scripts is damage, all else passes.
pub(super) fn unavailable(error: &RedisError) -> StoreError {
    if is_of_wrong_type(error) {
        StoreError::Damaged(error.to_string())
    } else {
        StoreError::Unavailable(error.to_string())
    }
}

/// Something else stands where ours should. The error of a pipeline has no code of its own.
pub(super) fn is_of_wrong_type(error: &RedisError) -> bool {
    error.code() == Some("WRONGTYPE")
        || error.kind() == redis::ErrorKind::UnexpectedReturnType
        || error.to_string().contains("WRONGTYPE")
}

impl Link {
    /// Reads the certificates; connects to nothing yet.
    pub(super) fn new(settings: RedisSettings) -> Result<Self, StoreError> {
        let read = |path: &Option<std::path::PathBuf>| {
            let read = |path: &std::path::PathBuf| {
                std::fs::read(path).map_err(|e| StoreError::Unavailable(format!("{}: {e}", path.display())))
            };
            path.as_ref().map(read).transpose()
        };
        let client_tls = match (read(&settings.cert_file)?, read(&settings.key_file)?) {
            (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig { client_cert, client_key }),
            _ => None,
        };
        let root_cert = read(&settings.ca_file)?;
        let certificates =
            (client_tls.is_some() || root_cert.is_some()).then_some(TlsCertificates { client_tls, root_cert });
        Ok(Self {
            settings,
            certificates,
            reads: ArcSwapOption::empty(),
            writes: tokio::sync::Mutex::new(None),
            opened: AtomicU64::new(0),
            silent: AtomicBool::new(true),
            lost: Notify::new(),
        })
    }

    /// The connection for reads.
    pub(super) fn reads(&self) -> Result<Connection, StoreError> {
        let connection = self.reads.load_full().filter(|_| !self.silent.load(Ordering::Acquire));
        connection
            .map(|connection| Connection::clone(&connection))
            .ok_or_else(|| StoreError::Unavailable("it is not connected".to_owned()))
    }

    /// The connection for writes, taken for as long as the guard lives.
    pub(super) async fn writes(&self) -> Result<Writing<'_>, StoreError> {
        if self.silent.load(Ordering::Acquire) {
            return Err(StoreError::Unavailable("it is not connected".to_owned()));
        }
        let mut slot = self.writes.lock().await;
        if slot.is_none() {
            *slot = Some(self.open(None).await.map_err(|error| unavailable(&error))?);
            self.opened.fetch_add(1, Ordering::AcqRel);
        }
        Ok(Writing { slot, number: self.opened.load(Ordering::Acquire) })
    }

    /// Whether the last beat was answered.
    pub(super) fn is_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::Release);
    }

    /// Opens the connection for reads; the old one, if there is one, ends when its last user lets go of it.
    pub(super) async fn connect(self: &Arc<Self>, on_message: OnMessage) -> RedisResult<Connection> {
        let connection = self.open(Some((self.clone(), on_message))).await?;
        self.reads.store(Some(Arc::new(connection.clone())));
        Ok(connection)
    }

    pub(super) async fn disconnect(&self) {
        self.is_silent(true);
        self.reads.store(None);
        if let Ok(mut slot) = self.writes.try_lock() {
            *slot = None;
        }
    }

    /// Resolves when the server has closed the connection for reads.
    pub(super) async fn lost(&self) {
        self.lost.notified().await;
    }

    async fn open(&self, pushes: Option<(Arc<Self>, OnMessage)>) -> RedisResult<Connection> {
        let settings = &self.settings;
        let tcp = || TcpSettings::default().set_nodelay(true);
        let hear = move |push: PushInfo| {
            if let Some((link, on_message)) = &pushes {
                link.pushed(&push, on_message);
            }
            Ok::<(), redis::aio::SendError>(())
        };
        match &settings.topology {
            Topology::One => {
                let info = self.info(settings.addresses.first())?.set_tcp_settings(tcp());
                let client = match self.certificates.clone() {
                    Some(certificates) if settings.tls => Client::build_with_tls(info, certificates)?,
                    _ => Client::open(info)?,
                };
                let config = timeouts().set_push_sender(hear);
                Ok(Connection::One(client.get_multiplexed_async_connection_with_config(&config).await?))
            }
            Topology::Sentinel { master } => {
                let addresses = settings.addresses.iter().map(|address| self.address(address));
                let mut builder = SentinelClientBuilder::new(addresses, master, SentinelServerType::Master)?
                    .set_client_to_redis_protocol(ProtocolVersion::RESP3)
                    .set_client_to_redis_db(settings.database)
                    .set_client_to_redis_tcp_settings(tcp())
                    .set_client_to_sentinel_tcp_settings(tcp());
                if let Some(username) = &settings.username {
                    builder = builder.set_client_to_redis_username(username);
                }
                if let Some(password) = &settings.password {
                    builder = builder.set_client_to_redis_password(password.expose());
                }
                if let Some(password) = &settings.sentinel_password {
                    builder = builder.set_client_to_sentinel_password(password.expose());
                }
                if settings.tls {
                    builder = builder
                        .set_client_to_redis_tls_mode(TlsMode::Secure)
                        .set_client_to_sentinel_tls_mode(TlsMode::Secure);
                }
                if let Some(certificates) = self.certificates.clone().filter(|_| settings.tls) {
                    builder = builder
                        .set_client_to_redis_certificates(certificates.clone())
                        .set_client_to_sentinel_certificates(certificates);
                }
                let config = timeouts().set_push_sender(hear);
                Ok(Connection::One(builder.build()?.get_async_connection_with_config(&config).await?))
            }
            Topology::Cluster => {
                let infos = settings.addresses.iter().map(|a| self.info(Some(a))).collect::<RedisResult<Vec<_>>>()?;
                let mut builder = ClusterClientBuilder::new(infos)
                    .use_protocol(ProtocolVersion::RESP3)
                    .tcp_settings(tcp())
                    .connection_timeout(limits::CONNECT_TIMEOUT)
                    .response_timeout(limits::STORE_TIMEOUT)
                    .retries(2)
                    .push_sender(hear);
                if let Some(certificates) = self.certificates.clone().filter(|_| settings.tls) {
                    builder = builder.certs(certificates);
                }
                Ok(Connection::Cluster(builder.build()?.get_async_connection().await?))
            }
        }
    }

    fn address(&self, (host, port): &(String, u16)) -> ConnectionAddr {
        if self.settings.tls {
            ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host.clone(), *port)
        }
    }

    fn info(&self, address: Option<&(String, u16)>) -> RedisResult<redis::ConnectionInfo> {
        let none = || RedisError::from((redis::ErrorKind::InvalidClientConfig, "no address"));
        let mut login =
            RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_db(self.settings.database);
        if let Some(username) = &self.settings.username {
            login = login.set_username(username);
        }
        if let Some(password) = &self.settings.password {
            login = login.set_password(password.expose());
        }
        Ok(self.address(address.ok_or_else(none)?).into_connection_info()?.set_redis_settings(login))
    }

    fn pushed(&self, push: &PushInfo, on_message: &OnMessage) {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::Message | PushKind::SMessage, [Value::BulkString(channel), Value::BulkString(payload)]) => {
                on_message(channel, payload);
            }
            // A cluster's client reconnects to the one node by itself.
            (PushKind::Disconnection, _) if self.settings.topology != Topology::Cluster => self.lost.notify_one(),
            _ => {}
        }
    }
}

fn timeouts() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(limits::CONNECT_TIMEOUT))
        .set_response_timeout(Some(limits::STORE_TIMEOUT))
}

/// The connection for writes, in use.
pub(super) struct Writing<'a> {
    /// Which of all connections for writes this is.
    pub(super) number: u64,
    slot: tokio::sync::MutexGuard<'a, Option<Connection>>,
}

impl Writing<'_> {
    /// Does something with the connection; one that failed is not used again.
    pub(super) async fn with<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Connection) -> RedisResult<T>,
    ) -> Result<T, StoreError> {
        let Some(connection) = &mut *self.slot else {
            return Err(StoreError::Unavailable("it is not connected".to_owned()));
        };
        let done = work(connection).await;
        done.map_err(|error| {
            // A server that became a replica refuses writes: ask anew who is the master.
            if error.is_io_error()
                || error.is_timeout()
                || error.is_connection_dropped()
                || error.code() == Some("READONLY")
            {
                *self.slot = None;
            }
            unavailable(&error)
        })
    }
}
