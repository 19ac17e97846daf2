//! Who plays: the clients, servers and actions, by the names that the flags, the plans and the table use.

use clap::ValueEnum;

/// A client, at the version that the peers pin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Client {
    /// @modelcontextprotocol/sdk, the TypeScript SDK 1.x.
    Ts1,
    /// @modelcontextprotocol/client 2.x, negotiating.
    Ts2,
    /// FastMCP's client.
    Fastmcp,
    /// The Inspector's one-shot command line.
    Inspector,
    /// The Rust SDK's client.
    Rmcp,
}

/// A server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Server {
    /// @modelcontextprotocol/server-everything over stdio, legacy alone.
    Everything,
    /// mcp-server-git over stdio, both eras.
    Git,
    /// `matrix_server_ts2.mjs` over HTTP, both eras, the legacy one without sessions.
    Ts2,
    /// `matrix_server_py.py` over HTTP, both eras.
    Py,
    /// The conformance fixture on the Rust SDK over HTTP, both eras.
    Fixture,
}

/// A column.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Action {
    List,
    Call,
    Progress,
    Cancel,
    Elicit,
    Subscribe,
    Read,
    Prompt,
}

/// Between client and server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    Rollcall,
    Direct,
}

/// What a client speaks to a server of both eras.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Era {
    Legacy,
    Modern,
}

impl Client {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ts1 => "ts1",
            Self::Ts2 => "ts2",
            Self::Fastmcp => "fastmcp",
            Self::Inspector => "inspector",
            Self::Rmcp => "rmcp",
        }
    }

    /// Rollcall and all servers that speak HTTP are of both eras, so that it depends on the client alone.
    pub(crate) fn era(self) -> Era {
        match self {
            Self::Ts1 | Self::Inspector => Era::Legacy,
            Self::Ts2 | Self::Fastmcp | Self::Rmcp => Era::Modern,
        }
    }
}

impl Server {
    /// Also its id in Rollcall's configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Everything => "everything",
            Self::Git => "git",
            Self::Ts2 => "ts2",
            Self::Py => "py",
            Self::Fixture => "fixture",
        }
    }
}

impl Action {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Call => "call",
            Self::Progress => "progress",
            Self::Cancel => "cancel",
            Self::Elicit => "elicit",
            Self::Subscribe => "subscribe",
            Self::Read => "read",
            Self::Prompt => "prompt",
        }
    }
}
