//! The events of a request on their way from the thread that runs steps to the task that writes the response. Their number is bounded: while a
//! client reads more slowly than text is generated, its text waits in the choice and goes on in larger pieces, so that nothing is lost and
//! no other request is held up.

use std::time::Duration;

use tokio::sync::mpsc::{Receiver, Sender, channel};
use unicorn_text::unicorn_runtime::HostSampled;

use crate::api::error::ApiError;
use crate::choice_end::{ChoiceEnd, Times};

/// An event of a request's response. `choice` is the index among the request's choices.
#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    /// It left the queue after the time `waited`. The first `cached_tokens` of the prompt were in the cache.
    Started { choice: u32, cached_tokens: u32, waited: Duration },
    /// The cache has the first `fed_tokens` of the prompt.
    Fed { choice: u32, fed_tokens: u32, times: Times },
    /// Text that became whole, and the tokens since the last, with their probabilities if those were requested. The text is never
    /// empty.
    Text { choice: u32, text: String, tokens: Vec<u32>, probabilities: Vec<HostSampled>, times: Times },
    /// Last event of a choice.
    Ended { choice: u32, end: ChoiceEnd },
    /// Last event of all choices.
    Failed(ApiError),
}

/// Events with text that wait for a client.
const WAITING: usize = 64;
/// Those for which there is always room: of each choice its beginning, its last text, and its end.
const OWN: usize = 3;

/// The sending end of one choice.
#[derive(Clone)]
pub(crate) struct Events {
    sender: Sender<Event>,
    reserved: usize,
}

impl Events {
    /// Both ends, for a request of `choices` choices.
    pub(crate) fn channel(choices: usize) -> (Events, Receiver<Event>) {
        let reserved = OWN * choices;
        let (sender, receiver) = channel(WAITING + reserved);
        (Events { sender, reserved }, receiver)
    }

    /// Whether an event can be sent for which no room is reserved.
    pub(crate) fn have_room(&self) -> bool {
        self.sender.capacity() > self.reserved
    }

    /// Sends an event for which there is room. A channel that the client has closed is no error here: see [`Events::are_closed`].
    pub(crate) fn send(&self, event: Event) {
        let _ = self.sender.try_send(event);
    }

    /// Whether the receiver is gone.
    pub(crate) fn are_closed(&self) -> bool {
        self.sender.is_closed()
    }
}
