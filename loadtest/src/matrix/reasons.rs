//! Why a cell cannot pass: the one table of it. The first line that fits a cell is its reason.
//!
//! A line whose reason is a specification is tried all the same (`is_refused`): it must end in a clear error, in time.

use super::cast::{Action, Client, Era, Route, Server};

/// One line. An empty list stands for all.
#[derive(Debug)]
pub(crate) struct Reason {
    clients: &'static [Client],
    servers: &'static [Server],
    actions: &'static [Action],
    route: Option<Route>,
    era: Option<Era>,
    pub(crate) because: &'static str,
    /// The section it rests on; none for a fact about a peer.
    pub(crate) reference: Option<&'static str>,
    /// Tried, and must be refused.
    pub(crate) is_refused: bool,
}

/// Fits every cell; each line below says what differs.
const ANY: Reason = Reason {
    clients: &[],
    servers: &[],
    actions: &[],
    route: None,
    era: None,
    because: "",
    reference: None,
    is_refused: false,
};

static REASONS: &[Reason] = &[
    Reason {
        servers: &[Server::Everything, Server::Git],
        route: Some(Route::Direct),
        because: "the server speaks stdio alone, the clients HTTP",
        ..ANY
    },
    // What the Inspector's command line cannot do.
    Reason {
        clients: &[Client::Inspector],
        actions: &[Action::Progress],
        because: "the one-shot Inspector asks for no progress, and shows none",
        ..ANY
    },
    Reason {
        clients: &[Client::Inspector],
        actions: &[Action::Cancel],
        because: "the one-shot Inspector ends a call only with itself, and on the legacy era a disconnect cancels nothing",
        reference: Some("2025-11-25 basic/transports, Sending Messages to the Server, 6"),
        ..ANY
    },
    Reason {
        clients: &[Client::Inspector],
        actions: &[Action::Subscribe],
        because: "the one-shot Inspector refuses resources/subscribe itself",
        ..ANY
    },
    // What mcp-server-git has not.
    Reason {
        servers: &[Server::Git],
        actions: &[Action::Progress, Action::Cancel, Action::Elicit],
        because: "no tool of the server is slow, reports progress or asks",
        ..ANY
    },
    Reason {
        servers: &[Server::Git],
        actions: &[Action::Read],
        because: "the server has no resources",
        reference: Some("server/resources, Error Handling"),
        is_refused: true,
        ..ANY
    },
    Reason {
        servers: &[Server::Git],
        actions: &[Action::Prompt],
        because: "the server has no prompts",
        reference: Some("server/prompts, Error Handling"),
        is_refused: true,
        ..ANY
    },
    Reason {
        servers: &[Server::Git],
        actions: &[Action::Subscribe],
        era: Some(Era::Legacy),
        because: "the server takes no subscriptions",
        reference: Some("2025-11-25 server/resources, Capabilities"),
        is_refused: true,
        ..ANY
    },
    Reason {
        servers: &[Server::Git],
        actions: &[Action::Subscribe],
        era: Some(Era::Modern),
        because: "the server takes no subscriptions",
        reference: Some("2026-07-28 basic/patterns/subscriptions: acknowledged is what will be honoured"),
        is_refused: true,
        ..ANY
    },
    // A client that cannot be asked is not asked.
    Reason {
        clients: &[Client::Inspector],
        servers: &[Server::Fixture],
        actions: &[Action::Elicit],
        route: Some(Route::Direct),
        because: "the fixture asks whoever calls, and the one-shot Inspector, which declares no elicitation, cancels",
        ..ANY
    },
    Reason {
        clients: &[Client::Inspector],
        actions: &[Action::Elicit],
        because: "the one-shot Inspector declares no elicitation, and may not be asked",
        reference: Some("2025-11-25 client/elicitation, Capabilities"),
        is_refused: true,
        ..ANY
    },
    // What the servers have on one era alone, where no Rollcall stands between.
    Reason {
        servers: &[Server::Ts2],
        actions: &[Action::Elicit],
        route: Some(Route::Direct),
        era: Some(Era::Legacy),
        because: "the server has no sessions on the legacy era, and so nothing that it could ask by",
        reference: Some("2025-11-25 basic/transports, Session Management"),
        is_refused: true,
        ..ANY
    },
    Reason {
        servers: &[Server::Ts2],
        actions: &[Action::Cancel],
        route: Some(Route::Direct),
        era: Some(Era::Legacy),
        because: "the server has no sessions on the legacy era, and so no request that a notification could cancel",
        reference: Some("2025-11-25 basic/utilities/cancellation, Behavior Requirements"),
        ..ANY
    },
    Reason {
        servers: &[Server::Ts2, Server::Py],
        actions: &[Action::Subscribe],
        route: Some(Route::Direct),
        era: Some(Era::Legacy),
        because: "the server takes subscriptions on the modern era alone",
        reference: Some("2025-11-25 server/resources, Capabilities"),
        is_refused: true,
        ..ANY
    },
];

impl Reason {
    fn fits(&self, route: Route, client: Client, server: Server, action: Action) -> bool {
        (self.clients.is_empty() || self.clients.contains(&client))
            && (self.servers.is_empty() || self.servers.contains(&server))
            && (self.actions.is_empty() || self.actions.contains(&action))
            && self.route.is_none_or(|only| only == route)
            && self.era.is_none_or(|only| only == client.era())
    }
}

/// Why this cell cannot pass, if it cannot.
pub(crate) fn find(route: Route, client: Client, server: Server, action: Action) -> Option<&'static Reason> {
    REASONS.iter().find(|reason| reason.fits(route, client, server, action))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_reason_is_the_reason_of_a_cell() {
        let mut used = vec![];
        for route in [Route::Rollcall, Route::Direct] {
            for &client in Client::value_variants() {
                for &server in Server::value_variants() {
                    for &action in Action::value_variants() {
                        used.extend(find(route, client, server, action).map(std::ptr::from_ref));
                    }
                }
            }
        }
        for reason in REASONS {
            assert!(used.contains(&std::ptr::from_ref(reason)), "{reason:?} is behind another that fits the same");
        }
    }

    #[test]
    fn what_must_be_refused_names_its_section() {
        for reason in REASONS.iter().filter(|reason| reason.is_refused) {
            assert!(reason.reference.is_some(), "{reason:?}");
        }
    }
}
