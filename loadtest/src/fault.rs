//! A TCP proxy that fails on demand, for any hop; and a round-robin before several nodes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What happens to bytes on their way. A change holds for connections that are open, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Each piece that is read goes on so much later, in both directions.
    Delay(Duration),
    /// Nothing goes on any more, and nobody is told: a cable that was pulled.
    Hang,
    /// Connections are ended with a reset.
    Reset,
    /// Connections are ended after so many bytes from the server.
    CutAfter(usize),
}

/// See the module. Ends when dropped.
pub struct FaultProxy {
    pub address: SocketAddr,
    fault: watch::Sender<Fault>,
    recorded: Arc<Mutex<Vec<u8>>>,
    serving: JoinHandle<()>,
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl FaultProxy {
    /// Forwards what comes to a free port of its own.
    pub async fn start(to: SocketAddr) -> std::io::Result<Self> {
        Self::start_with(to, false).await
    }

    /// The same, and remembers every byte.
    pub async fn recording(to: SocketAddr) -> std::io::Result<Self> {
        Self::start_with(to, true).await
    }

    async fn start_with(to: SocketAddr, records: bool) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (fault, watched) = watch::channel(Fault::None);
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let record = records.then(|| recorded.clone());
        #[expect(clippy::disallowed_methods, reason = "aborted when the proxy is dropped")]
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(forward(client, to, watched.clone(), record.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, fault, recorded, serving })
    }

    /// What went either way so far.
    pub fn recorded(&self) -> Vec<u8> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }
}

/// Resolves when connections are to be reset.
async fn reset(watched: &mut watch::Receiver<Fault>) {
    if watched.wait_for(|fault| *fault == Fault::Reset).await.is_err() {
        std::future::pending::<()>().await;
    }
}

type Record = Option<Arc<Mutex<Vec<u8>>>>;

async fn forward(client: TcpStream, to: SocketAddr, watched: watch::Receiver<Fault>, record: Record) {
    let mut resets = watched.clone();
    let mut passes = watched.clone();
    if passes.wait_for(|fault| *fault != Fault::Hang).await.is_err() {
        return;
    }
    let Ok(server) = TcpStream::connect(to).await else { return };
    for stream in [&client, &server] {
        stream.set_nodelay(true).ok();
        // A close of ours is a reset, as a broken machine's is.
        stream.set_zero_linger().ok();
    }
    let ((client_in, client_out), (server_in, server_out)) = (client.into_split(), server.into_split());
    tokio::select! {
        () = reset(&mut resets) => {}
        () = copy(client_in, server_out, watched.clone(), false, record.clone()) => {}
        () = copy(server_in, client_out, watched, true, record) => {}
    }
}

async fn copy(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut watched: watch::Receiver<Fault>,
    counts: bool,
    record: Record,
) {
    let mut buffer = vec![0; 64 << 10];
    let mut passed = 0;
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if watched.wait_for(|fault| *fault != Fault::Hang).await.is_err() {
            return;
        }
        let now = *watched.borrow();
        let mut piece = buffer.get(..read).unwrap_or_default();
        if let Fault::Delay(pause) = now {
            tokio::time::sleep(pause).await;
        }
        if let (Fault::CutAfter(bytes), true) = (now, counts) {
            piece = piece.get(..bytes.saturating_sub(passed).min(read)).unwrap_or_default();
        }
        passed += piece.len();
        if let Some(record) = &record {
            record.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(piece);
        }
        if to.write_all(piece).await.is_err() || piece.len() < read {
            return;
        }
    }
}

/// A plain TCP round-robin: each connection goes to the next node that takes it. Ends when dropped.
pub struct RoundRobin {
    pub address: SocketAddr,
    nodes: Arc<Mutex<Vec<SocketAddr>>>,
    serving: JoinHandle<()>,
}

impl Drop for RoundRobin {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl RoundRobin {
    pub async fn start(nodes: Vec<SocketAddr>) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let nodes = Arc::new(Mutex::new(nodes));
        let known = nodes.clone();
        #[expect(clippy::disallowed_methods, reason = "aborted when it is dropped")]
        let serving = tokio::spawn(async move {
            let next = AtomicUsize::new(0);
            let mut connections = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let nodes = known.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let turn = next.fetch_add(1, Ordering::Relaxed);
                connections.spawn(async move {
                    client.set_nodelay(true).ok();
                    for step in 0..nodes.len() {
                        let node = nodes.get((turn + step) % nodes.len().max(1)).copied();
                        let Some(node) = node else { return };
                        if let Ok(mut server) = TcpStream::connect(node).await {
                            server.set_nodelay(true).ok();
                            tokio::io::copy_bidirectional(&mut client, &mut server).await.ok();
                            return;
                        }
                    }
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, nodes, serving })
    }

    /// Who gets connections from here on; those that are open stay.
    pub fn set(&self, nodes: Vec<SocketAddr>) {
        *self.nodes.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
    }
}
