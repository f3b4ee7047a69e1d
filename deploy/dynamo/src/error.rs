//! Errors as Dynamo sorts them: the kind decides the status of the response, and whether another worker is asked.

use dynamo_backend_common::{BackendError, DynamoError, ErrorType};

/// The request or an option is wrong: another worker would refuse it as well. The client reads the message.
pub(crate) fn invalid(message: impl Into<String>) -> DynamoError {
    let message = message.into();
    let builder = DynamoError::builder().error_type(ErrorType::Backend(BackendError::InvalidArgument));
    builder.public_message(message.clone()).message(message).build()
}

/// The engine cannot run requests, now or any more.
pub(crate) fn shut_down(message: impl Into<String>) -> DynamoError {
    DynamoError::builder().error_type(ErrorType::Backend(BackendError::EngineShutdown)).message(message).build()
}

/// A step failed, or a reply has no next token.
pub(crate) fn failed(message: impl Into<String>) -> DynamoError {
    DynamoError::builder().error_type(ErrorType::Backend(BackendError::Unknown)).message(message).build()
}
