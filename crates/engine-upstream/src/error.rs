//! Failures of one server and their consequences: whether another server may succeed, whether the failure counts
//! against this one, and which error the caller gets.

use chancery_engine::EngineError;
use chancery_http_client::EventError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UpstreamError {
    pub(super) kind: UpstreamErrorKind,
    /// For the log, never for a caller.
    pub(super) detail: String,
    /// The details of an error response.
    pub(super) error_response: Option<ErrorResponse>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpstreamErrorKind {
    /// No connection, or one that broke during a reply.
    Unreachable,
    /// The connection ended before the response head, and so did a new one if the job was sent again (`transport`).
    ConnectionClosed,
    /// No data for too long.
    TimedOut,
    /// The job's total timeout has passed.
    DeadlineExceeded,
    /// Overloaded, with the retry delay if it gave one.
    Busy { retry_after_s: Option<u32> },
    /// The server failed or violated the protocol.
    ServerFailure,
    /// The server ended the reply for a reason specific to the job, such as a content filter.
    UnsupportedFinish,
    /// The server rejected the job, as any other would.
    Rejected,
    /// The server does not support a field of the job. Another kind of server may.
    UnsupportedParam,
    /// The prompt does not fit into the context.
    ContextExceeded,
}

/// What an error response tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ErrorResponse {
    pub(super) status: u16,
    /// The server's message, if it is safe to show to a caller.
    pub(super) reason: Option<String>,
    /// The server's count of the prompt, if it gave one.
    pub(super) prompt_tokens: Option<u32>,
    /// Whether it names `continuous_usage_stats`, which not every server supports.
    pub(super) names_continuous_usage: bool,
    /// Whether it names `cache_salt`. It may also quote a caller who does.
    pub(super) names_cache_salt: bool,
    /// The names of sampling fields in it. It may also quote a caller who has them in a text.
    pub(super) named_params: Vec<&'static str>,
}

impl UpstreamError {
    pub(super) fn new(kind: UpstreamErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), error_response: None }
    }

    pub(super) fn server_failure(detail: impl Into<String>) -> Self {
        Self::new(UpstreamErrorKind::ServerFailure, detail)
    }

    /// The reason is for the caller, and follows the words "rejected by the model's server".
    pub(super) fn unsupported_param(reason: impl Into<String>) -> Self {
        let reason = reason.into();
        let error_response = ErrorResponse { reason: Some(reason.clone()), ..ErrorResponse::default() };
        Self {
            error_response: Some(error_response),
            ..Self::new(UpstreamErrorKind::UnsupportedParam, reason)
        }
    }

    /// Whether the same job may succeed on another server.
    pub(super) fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            UpstreamErrorKind::Unreachable
                | UpstreamErrorKind::ConnectionClosed
                | UpstreamErrorKind::TimedOut
                | UpstreamErrorKind::Busy { .. }
                | UpstreamErrorKind::ServerFailure
                | UpstreamErrorKind::UnsupportedParam
        )
    }

    /// Whether the server itself failed. A server that is busy or rejects a job works. The total timeout is the job's:
    /// a long reply reaches it on a working server too.
    pub(super) fn is_server_failure(&self) -> bool {
        matches!(
            self.kind,
            UpstreamErrorKind::Unreachable
                | UpstreamErrorKind::ConnectionClosed
                | UpstreamErrorKind::TimedOut
                | UpstreamErrorKind::ServerFailure
        )
    }

    /// Whether a failed health check still shows a working server, such as one that has no list of models, hides it, or
    /// rate-limits it. A server that rejects the key (401) would reject jobs too.
    pub(super) fn is_health_check_response(&self) -> bool {
        self.error_response.as_ref().is_some_and(|error_response| match error_response.status {
            401 | 408 => false,
            status => (400..500).contains(&status) || status == 501,
        })
    }

    /// Whether the server has no such path, or none for this side, and will answer the same next time. An overloaded or
    /// broken server (429, 5xx) may have it.
    pub(super) fn is_missing_path(&self) -> bool {
        self.error_response.as_ref().is_some_and(|error_response| match error_response.status {
            408 | 429 => false,
            status => (300..500).contains(&status) || status == 501,
        })
    }

    pub(super) fn into_engine_error(self, context_tokens: u32) -> EngineError {
        let error_response = self.error_response.unwrap_or_default();
        match self.kind {
            UpstreamErrorKind::TimedOut | UpstreamErrorKind::DeadlineExceeded => EngineError::TimedOut,
            UpstreamErrorKind::Busy { retry_after_s } => {
                EngineError::Overloaded { retry_after_s: retry_after_s.unwrap_or(1) }
            }
            UpstreamErrorKind::ContextExceeded => {
                EngineError::InputTooLong { prompt_tokens: error_response.prompt_tokens, context_tokens }
            }
            UpstreamErrorKind::Rejected | UpstreamErrorKind::UnsupportedParam => {
                EngineError::InputRejected { reason: error_response.reason }
            }
            UpstreamErrorKind::Unreachable
            | UpstreamErrorKind::ConnectionClosed
            | UpstreamErrorKind::ServerFailure
            | UpstreamErrorKind::UnsupportedFinish => EngineError::Failed(self.detail),
        }
    }
}

impl From<EventError> for UpstreamError {
    fn from(error: EventError) -> Self {
        Self::server_failure(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_check_passes_without_a_model_list() {
        for (status, expected) in [
            (403, true),
            (404, true),
            (405, true),
            (429, true),
            (501, true),
            (401, false),
            (500, false),
            (503, false),
        ] {
            let error_response = Some(ErrorResponse { status, ..ErrorResponse::default() });
            let error = UpstreamError { error_response, ..UpstreamError::server_failure("no list") };
            assert_eq!(error.is_health_check_response(), expected, "{status}");
        }
        assert!(!UpstreamError::new(UpstreamErrorKind::TimedOut, "nothing came").is_health_check_response());
    }

    #[test]
    fn path_is_missing_unless_the_failure_may_pass() {
        for (status, expected) in [
            (307, true),
            (400, true),
            (401, true),
            (403, true),
            (404, true),
            (405, true),
            (501, true),
            (408, false),
            (429, false),
            (500, false),
            (502, false),
            (503, false),
        ] {
            let error_response = Some(ErrorResponse { status, ..ErrorResponse::default() });
            let error = UpstreamError { error_response, ..UpstreamError::server_failure("no path") };
            assert_eq!(error.is_missing_path(), expected, "{status}");
        }
        assert!(!UpstreamError::new(UpstreamErrorKind::ConnectionClosed, "gone").is_missing_path());
    }
}
