//! The events of a request on their way from the thread that runs steps to the task that writes the response. Their number is bounded: while a
//! client reads more slowly than text is generated, its text waits in the choice and goes on in larger pieces, so that nothing is lost and
//! no other request is held up.

use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::choice::Event;

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

    /// Whether nobody waits for them any more.
    pub(crate) fn are_closed(&self) -> bool {
        self.sender.is_closed()
    }
}
