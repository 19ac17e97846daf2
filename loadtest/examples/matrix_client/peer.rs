//! One connection: the SDK's client with a handler that answers questions and notes what the server sends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::model::*;
use rmcp::service::{NotificationContext, RequestContext, RunningService, Subscription};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, ClientLifecycleMode, ClientServiceExt as _, ErrorData, RoleClient};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::Notify;

use crate::actions::Failure;

/// What the server said beside its answers.
#[derive(Default)]
pub(crate) struct Heard {
    asked: Mutex<Vec<Value>>,
    progress: Mutex<Vec<f64>>,
    updated: Mutex<Vec<String>>,
    update: Notify,
}

struct Handler {
    answer: Option<Value>,
    heard: Arc<Heard>,
}

/// See the module.
pub(crate) struct Peer {
    running: RunningService<RoleClient, Handler>,
    pub(crate) heard: Arc<Heard>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Heard {
    /// The parameters of each question so far.
    pub(crate) fn asked(&self) -> Vec<Value> {
        lock(&self.asked).clone()
    }

    pub(crate) fn progress(&self) -> Vec<f64> {
        lock(&self.progress).clone()
    }

    /// Ends when the legacy era's notification for this resource has come.
    async fn updated(&self, uri: &str) {
        while !lock(&self.updated).iter().any(|other| other == uri) {
            self.update.notified().await;
        }
    }
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(capabilities, Implementation::new("matrix-rmcp", "1.0.0"))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        lock(&self.heard.asked).push(serde_json::to_value(request).unwrap_or_default());
        let said = ElicitResult::new(ElicitationAction::Accept);
        Ok(match &self.answer {
            Some(answer) => said.with_content(answer.clone()),
            None => ElicitResult::new(ElicitationAction::Decline),
        })
    }

    async fn on_progress(&self, step: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        lock(&self.heard.progress).push(step.progress);
    }

    async fn on_resource_updated(&self, update: ResourceUpdatedNotificationParam, _: NotificationContext<RoleClient>) {
        lock(&self.heard.updated).push(update.uri);
        self.heard.update.notify_one();
    }
}

/// A stream of the modern era, or a word to the server of the legacy one.
pub(crate) enum Subscribed<'a> {
    Modern(Box<Subscription>),
    Legacy(&'a Heard),
}

impl Peer {
    pub(crate) async fn connect(url: &str, token: &str, answer: Option<Value>) -> Result<Self, Failure> {
        let mut config = StreamableHttpClientTransportConfig::with_uri(url);
        if !token.is_empty() {
            config = config.auth_header(token);
        }
        let heard = Arc::new(Heard::default());
        let handler = Handler { answer, heard: heard.clone() };
        let lifecycle = ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: Some(ProtocolVersion::V_2025_11_25),
        };
        let running = handler
            .serve_with_lifecycle(StreamableHttpClientTransport::from_config(config), lifecycle)
            .await
            .map_err(|error| Failure::Refused { code: None, message: error.to_string() })?;
        Ok(Self { running, heard })
    }

    pub(crate) fn era(&self) -> Option<String> {
        let info = serde_json::to_value(self.running.peer_info()?.as_ref()).ok()?;
        Some(info.get("protocolVersion")?.as_str()?.to_owned())
    }

    /// All pages' names.
    pub(crate) async fn list(&self) -> Result<Vec<String>, Failure> {
        Ok(self.running.list_all_tools().await?.into_iter().map(|tool| tool.name.into_owned()).collect())
    }

    /// The text of a result that is no error. Questions are answered on the way.
    pub(crate) async fn call(&self, plan: &Value) -> Result<String, Failure> {
        let mut params = CallToolRequestParams::new(member(plan, "tool"));
        if let Some(arguments) = plan.get("arguments").and_then(Value::as_object) {
            params = params.with_arguments(arguments.clone());
        }
        let result = json(self.running.call_tool(params).await?)?;
        let text = texts(&result, "content", "/text");
        if result.get("isError") == Some(&Value::Bool(true)) {
            return Err(Failure::Refused { code: None, message: text });
        }
        Ok(text)
    }

    pub(crate) async fn read(&self, uri: &str) -> Result<String, Failure> {
        let result = self.running.read_resource(ReadResourceRequestParams::new(uri)).await?;
        Ok(texts(&json(result)?, "contents", "/text"))
    }

    pub(crate) async fn prompt(&self, plan: &Value) -> Result<String, Failure> {
        let mut params = GetPromptRequestParams::new(member(plan, "name"));
        if let Some(arguments) = plan.get("arguments").and_then(Value::as_object) {
            params = params.with_arguments(arguments.clone());
        }
        Ok(texts(&json(self.running.get_prompt(params).await?)?, "messages", "/content/text"))
    }

    pub(crate) async fn subscribe(&self, uri: &str) -> Result<Subscribed<'_>, Failure> {
        if self.era().as_deref() != Some(ProtocolVersion::V_2026_07_28.as_str()) {
            #[expect(deprecated, reason = "the legacy era subscribes so")]
            self.running.subscribe(SubscribeRequestParams::new(uri)).await?;
            return Ok(Subscribed::Legacy(&self.heard));
        }
        let filter = SubscriptionFilter::builder().resource_subscription(uri).build();
        let subscription = self.running.listen(filter).await?;
        let honoured = subscription.acknowledged().resource_subscriptions.clone().unwrap_or_default();
        if honoured.iter().any(|other| other == uri) {
            return Ok(Subscribed::Modern(Box::new(subscription)));
        }
        Err(Failure::Refused { code: None, message: format!("not honoured: {honoured:?}") })
    }

    pub(crate) async fn close(self) {
        // What the server makes of the end is no part of the action.
        self.running.cancel().await.ok();
    }
}

impl Subscribed<'_> {
    /// Ends when the server has said that this resource was updated.
    pub(crate) async fn updated(&mut self, uri: &str) -> Result<(), Failure> {
        match self {
            Self::Legacy(heard) => {
                heard.updated(uri).await;
                Ok(())
            }
            Self::Modern(subscription) => loop {
                match subscription.next().await? {
                    Some(ServerNotification::ResourceUpdatedNotification(update)) if update.params.uri == uri => {
                        return Ok(());
                    }
                    Some(_) => {}
                    None => return Err(Failure::Unexpected(format!("the stream ended: {:?}", subscription.end()))),
                }
            },
        }
    }
}

pub(crate) fn member(plan: &Value, name: &str) -> String {
    plan.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn json(result: impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(result).map_err(|error| Failure::Unexpected(error.to_string()))
}

fn texts(result: &Value, list: &str, pointer: &str) -> String {
    let items = result.get(list).and_then(Value::as_array).into_iter().flatten();
    let texts: Vec<&str> = items.filter_map(|item| item.pointer(pointer)?.as_str()).collect();
    texts.join("\n")
}
