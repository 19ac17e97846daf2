//! Every bound of the program, one constant each, with the attack or the accident that it stops.
//!
//! Sizes are bytes and times are milliseconds where the name says so.

use std::time::Duration;

/// Body of one agent or admin request. The TypeScript and Rust SDKs refuse beyond the same 4 MiB.
pub const BODY_BYTES: usize = 4 << 20;
/// All request bodies and results that the process holds at once. A flood of large bodies must not end it.
pub const BUFFERED_BYTES: usize = 512 << 20;
/// Calls that one process works on at once; above it, a refusal within milliseconds beats a slow death.
pub const CALLS_IN_FLIGHT: usize = 1_000;
/// One tenant may hold the whole of both budgets divided by this: a noisy tenant must leave room for the others.
pub const TENANT_SHARE: usize = 2;
/// Connections that the agent listener holds; each costs a descriptor and some kilobytes.
pub const CONNECTIONS: usize = 10_000;
/// Time for a client to send its request head, and then its body (slowloris).
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// When a node closes its doors: for the first request of a connection that it has just let in.
pub const LAST_REQUEST: Duration = Duration::from_secs(1);
/// Request headers: count, and bytes of the whole head.
pub const HEADERS: usize = 100;
pub const HEAD_BYTES: usize = 64 << 10;
/// HTTP/2 streams of one client connection.
pub const H2_STREAMS: u32 = 256;

/// A token larger than this is refused before anything looks into it.
pub const TOKEN_BYTES: usize = 16 << 10;
/// Verified tokens remembered, and how long at most: a signature costs as much as proxying a request.
pub const TOKENS_CACHED: u64 = 200_000;
pub const TOKEN_CACHED_FOR: Duration = Duration::from_secs(300);
/// Clock skew that is forgiven in `exp` and `nbf`.
pub const TOKEN_LEEWAY_S: u64 = 5;
/// A token may live this long at the most, so that a tombstone can outlive every token.
pub const TOKEN_LIFETIME_S: u64 = 31 * 24 * 3600;
/// A deleted policy stays denied for longer than any token that could ask for it.
pub const TOMBSTONE_LIFETIME_S: u64 = TOKEN_LIFETIME_S + 24 * 3600;
/// Key sets: size, keys, time to fetch, and the shortest pause between two fetches for an unknown key id.
pub const JWKS_BYTES: usize = 256 << 10;
pub const JWKS_KEYS: usize = 64;
pub const JWKS_TIMEOUT: Duration = Duration::from_secs(5);
pub const JWKS_REFETCH_PAUSE: Duration = Duration::from_secs(10);
/// Keys that an outage of the issuer may keep in use, and the age at which they are fetched again.
pub const JWKS_KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
pub const JWKS_MAX_AGE: Duration = Duration::from_secs(600);

/// Characters of a visible name: what every model API accepts.
pub const NAME_CHARS: usize = 64;
/// The least that a tenant may set it to: the longest alias, the separator, and the hash of a cut name fit.
pub const NAME_CHARS_LEAST: usize = 40 + 2 + 9;
/// Characters of a base alias before it is allotted.
pub const ALIAS_CHARS: usize = 24;
/// Names of one `resolve`.
pub const RESOLVE_NAMES: usize = 100;
/// Longest name that is compared for nearness; a longer one is only repeated, cut.
pub const NEAREST_NAME_BYTES: usize = 128;
/// Unknown names for which nearest ones are searched, and how many are offered for each.
pub const NEAREST_FOR: usize = 3;
pub const NEAREST_OFFERED: usize = 3;
/// Names that a recovery text lists before it counts the rest.
pub const RECOVERY_NAMES: usize = 60;

/// Entries of one policy list or bundle, and stars of a glob (linear-time matching).
pub const POLICY_ENTRIES: usize = 2_000;
pub const GLOB_STARS: usize = 2;
/// Bytes of one entry.
pub const ENTRY_BYTES: usize = 512;
/// Effective MCP tools above which the list is deferred, unless tenant or policy says otherwise.
pub const DEFER_ABOVE: usize = 110;

/// Servers and platform tools of one tenant.
pub const SERVERS_PER_TENANT: usize = 1_000;
pub const PLATFORM_TOOLS_PER_TENANT: usize = 5_000;
/// Sessions whose view a node keeps at hand, and absent policies it remembers, per tenant.
pub const SESSIONS_AT_HAND: u64 = 1_000_000;
/// A session that asks nothing for this long is computed anew when it does: it holds on to its registry until then.
pub const SESSION_IDLE: Duration = Duration::from_secs(3600);
/// Tenants that a node keeps at hand, by weight in bytes.
pub const TENANT_WEIGHT: u64 = 2 << 30;

/// `tools/list` is one page up to here: most clients ignore cursors.
pub const LIST_PAGE_BYTES: usize = 8 << 20;
/// Rendered lists and spec fragments kept, by weight.
pub const RENDERED_BYTES: u64 = 128 << 20;
pub const SPEC_FRAGMENT_BYTES: u64 = 64 << 20;
/// What a session is told before its tools: bytes of the base and of each supplement, how many supplements, and how many
/// sessions' instructions are kept at hand.
pub const INSTRUCTIONS_BYTES: usize = 64 << 10;
pub const SUPPLEMENTS: usize = 64;
pub const INSTRUCTIONS_AT_HAND: u64 = 10_000;
/// Of what one server says of itself, where it may.
pub const SERVER_INSTRUCTIONS_CHARS: usize = 8_000;
/// What a platform tool tells at a status.
pub const DESCRIPTION_CHARS: usize = 2_000;
/// The schema of one imported operation: an agent has to read it.
pub const IMPORTED_SCHEMA_BYTES: usize = 256 << 10;
/// References that lead to references.
pub const REFERENCE_HOPS: usize = 16;
/// Characters before the names of an imported API.
pub const API_PREFIX_CHARS: usize = 24;
/// Problems of a call's arguments that are told.
pub const ARGUMENT_PROBLEMS: usize = 10;
/// Compiled schemas that arguments are checked against: of platform tools at a worker, of servers' tools at a gateway.
pub const SCHEMAS_AT_HAND: u64 = 10_000;
/// Changes between two views that are kept for the next who is told of them.
pub const CHANGES_AT_HAND: u64 = 1_000;
/// Indices for search that are kept, by weight.
pub const SEARCH_INDEX_BYTES: u64 = 128 << 20;
/// A search: characters and words of a query, words that stand for one that is misspelt, tools that are found unless the
/// query says otherwise and at most, and bytes of the answer (about four to a token).
pub const SEARCH_QUERY_CHARS: usize = 400;
pub const SEARCH_QUERY_WORDS: usize = 40;
pub const SEARCH_NEAR_WORDS: usize = 4;
pub const SEARCH_FOUND: usize = 8;
pub const SEARCH_FOUND_MOST: usize = 50;
pub const SEARCH_ANSWER_BYTES: usize = 6_000;
/// Of a description: bytes of its opening, and characters that are indexed at all.
pub const SEARCH_OPENING_BYTES: usize = 200;
pub const SEARCH_TEXT_CHARS: usize = 2_000;
/// A signature, and what is said of a tool beside it.
pub const SIGNATURE_BYTES: usize = 400;
pub const BRIEF_BYTES: usize = 160;
/// Views of more tools than this are indexed off the threads that serve.
pub const INDEXED_AT_ONCE: usize = 200;
/// JSON depth that schema rewriting walks; deeper schemas are given unchanged.
pub const SCHEMA_DEPTH: usize = 128;

/// One upstream message: result, notification or SSE event. The public SDKs cap the same at 16 MiB.
pub const UPSTREAM_MESSAGE_BYTES: usize = 16 << 20;
/// One whole listing: pages, bytes, tools, and time.
pub const LISTING_PAGES: usize = 200;
pub const LISTING_BYTES: usize = 64 << 20;
pub const LISTING_TOOLS: usize = 20_000;
pub const LISTING_TIMEOUT: Duration = Duration::from_secs(60);
/// A catalog older than this is listed again when it is used.
pub const CATALOG_AGE: Duration = Duration::from_secs(300);
/// A server that keeps announcing changes is listed again at most this often.
pub const CATALOG_PAUSE: Duration = Duration::from_secs(1);
/// Time to open a TCP connection upstream, and for a server to answer its first message (npm and PyPI servers need seconds).
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);
/// The probe for the modern era; a server that does not answer it is asked in the legacy way.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// A call, unless the server's settings say otherwise.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Slack that the gateway gives the worker to report a deadline itself.
pub const DEADLINE_SLACK: Duration = Duration::from_millis(50);
/// An upstream connection without calls is closed after this.
pub const UPSTREAM_IDLE: Duration = Duration::from_secs(600);
/// Upstream connections of one tenant in one worker.
pub const UPSTREAMS_PER_TENANT: usize = 200;
/// Calls in flight on one upstream, so that a hung one holds no more.
pub const UPSTREAM_CALLS: usize = 256;
/// Upstream connections that a worker opens at once, and those of one tenant among them: everybody comes back together after
/// an outage, and a handshake may take its whole timeout.
pub const OPENINGS: usize = 256;
pub const OPENINGS_PER_TENANT: usize = 16;
/// Pauses after a failed start: the first, and the longest.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(500);
pub const BACKOFF_LONGEST: Duration = Duration::from_secs(30);
/// A stdio child between closing its input, SIGTERM and SIGKILL.
pub const CHILD_GRACE: Duration = Duration::from_secs(2);
/// A line of a child's standard error that reaches the log.
pub const STDERR_LINE_BYTES: usize = 2_000;
/// Messages waiting to be written to one stdio child.
pub const STDIO_QUEUE: usize = 256;

/// Interim messages of a call (progress, logging) that wait for a slow reader; beyond it the oldest news is worth nothing and is dropped.
pub const INTERIM_QUEUE: usize = 64;
/// A call that has no answer yet becomes a stream after this, and then carries a comment this often: idle connections are cut from 60 s on.
pub const STREAM_AFTER: Duration = Duration::from_secs(5);
pub const STREAM_COMMENT: Duration = Duration::from_secs(15);
/// A legacy session's call becomes a stream sooner: from then on a broken connection loses nothing.
pub const RESUMABLE_AFTER: Duration = Duration::from_millis(100);
/// After which a client is told to come back to a stream that broke (`retry`).
pub const STREAM_RETRY: Duration = Duration::from_millis(1000);
/// Standing streams (GET, `subscriptions/listen`) of one tenant on one node, and the resources that one names.
pub const STANDING_STREAMS: usize = 10_000;
pub const SUBSCRIPTIONS: usize = 256;
/// Bytes of one URI that a session remembers.
pub const SUBSCRIBED_URI_BYTES: usize = 2 << 10;
/// Distinct subscriptions of one tenant in one worker: each is a stream of its own at its server.
pub const TOPICS_PER_TENANT: usize = 1_000;
/// How long a subscription outlives its last listener: who changes what it listens to comes back at once.
pub const TOPIC_LINGERS: Duration = Duration::from_secs(1);
/// A legacy transport session, from `initialize` on; its client then opens another.
pub const MCP_SESSION_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// What such sessions remember, kept at hand.
pub const MCP_SESSIONS_AT_HAND: u64 = 200_000;
/// Bytes of capabilities that travel inside a session's id; what is larger is cut to the known ones.
pub const SESSION_CAPABILITIES_BYTES: usize = 2 << 10;
/// A call that waits for its caller's input, and how many of one tenant may.
pub const PARKED_FOR: Duration = Duration::from_secs(600);
pub const PARKED_PER_TENANT: usize = 200;
/// Calls of one tenant that nobody waits for at this moment (parked, or running on without their client), and the bytes
/// of their params; of one session, calls that are parked.
pub const DETACHED_PER_TENANT: usize = 300;
pub const DETACHED_BYTES: usize = 32 << 20;
pub const PARKED_PER_SESSION: usize = 50;
/// Rounds of input that one call may ask for, and requests in one round.
pub const INPUT_ROUNDS: u32 = 32;
pub const INPUT_REQUESTS: usize = 16;
/// A `requestState` of an upstream that is carried to a caller and back, and how long it is good for.
pub const REQUEST_STATE_BYTES: usize = 64 << 10;
pub const REQUEST_STATE_LIFETIME: Duration = Duration::from_secs(3600);
/// A task's handle. Servers keep tasks for minutes to hours.
pub const TASK_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// What was told in a call with a legacy session, kept for a client whose stream broke: messages, and how long after
/// the end; and the bytes of all that ended.
pub const REPLAYED_MESSAGES: usize = 64;
/// One notification or question on its way to a caller, and all that is kept of one call.
pub const NEWS_BYTES: usize = 256 << 10;
pub const REPLAYED_CALL_BYTES: usize = 1 << 20;
pub const REPLAYED_FOR: Duration = Duration::from_secs(60);
pub const REPLAYED_BYTES: u64 = 64 << 20;
/// Messages of one batch (2025-03-26).
pub const BATCH: usize = 64;
/// How long more questions are waited for after the first, before a modern caller is asked them together.
pub const ONE_BREATH: Duration = Duration::from_millis(1);
/// How long a call waits for messages of its server that come on another stream, once one came there.
pub const STRAGGLERS: Duration = Duration::from_millis(20);
/// How long the first call of a session of its own waits for the server's standing stream. It opens within a round trip;
/// some servers send its head with the first event only, and must not hold up the call.
pub const STANDING_STREAM: Duration = Duration::from_millis(500);
/// Listeners to one upstream's updates that lag further behind than this lose some.
pub const UPDATES_QUEUE: usize = 256;
/// How long the first list of a tenant waits for servers that never listed anything.
pub const FIRST_LISTING_WAIT: Duration = Duration::from_secs(5);

/// How long the body of a request that does not fit is read and thrown away, so that its client reads the refusal.
pub const LINGER: Duration = Duration::from_secs(1);

/// How often a thread that serves connections looks at its timers at the least: shorter than what calls wait for.
pub const CORE_TICK: Duration = Duration::from_millis(50);

/// How long a connection to an upstream waits for its next request: less than servers usually keep theirs (60 s and more).
pub const SOCKET_IDLE: Duration = Duration::from_secs(50);

/// Connections to one upstream that are kept while nothing is sent on them.
pub const SOCKETS_IDLE: usize = 64;

/// What is read of an upstream's socket at once.
pub const UPSTREAM_READ_BYTES: usize = 256 << 10;

/// All headers of an upstream's answer over HTTP/2.
pub const UPSTREAM_HEAD_BYTES: u32 = 64 << 10;

/// Bytes that one HTTP/2 stream of an upstream may be ahead of its reader, and all of a connection: one that nobody reads
/// must not stop the others.
pub const H2_UPSTREAM_STREAM_WINDOW: u32 = 256 << 10;
pub const H2_UPSTREAM_WINDOW: u32 = 16 << 20;

/// Audit lines waiting to be written; beyond it they are dropped and counted, never awaited.
pub const AUDIT_QUEUE: usize = 8_192;

/// How long an audit line may wait for others to be written with it; what a process that is killed may lose of them.
pub const AUDIT_BATCH: Duration = Duration::from_millis(20);

/// Audit lines are written in pieces of about this size.
pub const AUDIT_WRITE_BYTES: usize = 64 << 10;
/// Change log entries of a partition that the embedded stores keep for readers that lag.
pub const CHANGE_LOG: usize = 4_096;
/// The pause before changes that could not be read are asked for again, and the longest wait of a write for its own.
pub const CATCH_UP_PAUSE: Duration = Duration::from_millis(200);
pub const APPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests that wait at once for an issuer's keys: made-up tokens must not fill the process.
pub const JWKS_WAITERS: usize = 100;
/// Servers that a tenant's first list connects to at once.
pub const FIRST_CONNECTS: usize = 16;
/// Characters of a method or a cause that reach a log.
pub const LOGGED_CHARS: usize = 200;
/// One stored document, and one configuration file.
pub const DOCUMENT_BYTES: usize = 1 << 20;
pub const CONFIG_BYTES: usize = 16 << 20;
/// Nesting of a configuration file or an admin document.
pub const DOCUMENT_DEPTH: usize = 64;
/// How often a node reads the positions of all partitions, and for how long it may rely on what it holds when the shared
/// store does not answer.
pub const STORE_BEAT: Duration = Duration::from_millis(100);
pub const STORE_LEASE: Duration = Duration::from_secs(30);
pub const STORE_LEASE_LEAST: Duration = Duration::from_secs(1);
/// One command to the shared store, and how long a request of a strict tenant waits for changes to be applied.
pub const STORE_TIMEOUT: Duration = Duration::from_millis(1500);
pub const STRICT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pauses before the shared store is connected to again: the first, and the longest.
pub const STORE_RECONNECT_FIRST: Duration = Duration::from_millis(50);
pub const STORE_RECONNECT_LONGEST: Duration = Duration::from_secs(1);
/// How long a revocation of a strict tenant waits for a replica to hold it.
pub const REPLICA_TIMEOUT: Duration = Duration::from_millis(500);
/// Changes of one script of the shared store, which answers nobody else meanwhile.
pub const WRITES_AT_ONCE: usize = 500;
/// A catalog's content that nobody listed again for this long leaves the shared store; it is listed again on use.
pub const BLOB_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// Who held an exclusive connection last is remembered for this long, so that epochs never go back.
pub const CLAIM_KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
/// How often a worker makes sure that what it holds is still its own.
pub const CLAIM_LOOK: Duration = Duration::from_secs(600);
/// The link between gateways and workers: time to connect and greet, bytes of a greeting, connections to one worker that
/// are kept idle, and for how long.
pub const WIRE_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
pub const WIRE_GREETING_BYTES: usize = 4 << 10;
pub const WIRE_IDLE_CONNECTIONS: usize = 256;
pub const WIRE_IDLE: Duration = Duration::from_secs(60);
/// How far the clocks of a gateway and a worker may be apart.
pub const WIRE_SKEW: Duration = Duration::from_secs(60);
/// A worker's lease: how often it is renewed, how long it lasts, and how long before its end the worker stops touching what
/// only one may hold. A beat that is late by a pause of the machine must not cost the lease.
pub const WORKER_BEAT: Duration = Duration::from_secs(2);
pub const WORKER_LEASE: Duration = Duration::from_secs(6);
pub const WORKER_FENCE_MARGIN: Duration = Duration::from_millis(1500);
/// How often a gateway looks who the workers are, beside being told.
pub const MEMBERS_LOOK: Duration = Duration::from_secs(1);
/// A worker that could not be reached is asked last for this long.
pub const SUSPECT_FOR: Duration = Duration::from_secs(2);
/// Workers that one call is offered to before it is given up; how long it waits for one to be there at all.
pub const WORKERS_TRIED: usize = 3;
pub const WORKER_WAIT: Duration = Duration::from_secs(2);
/// From not being ready to closing the doors: a load balancer's health checks, and gateways' looks at the members.
pub const DRAIN_DELAY: Duration = Duration::from_secs(5);
/// How long a call waits for what only one may hold to move away from a worker that drains, and how often it looks.
pub const MOVE_WAIT: Duration = Duration::from_secs(20);
pub const MOVE_LOOK: Duration = Duration::from_millis(50);
