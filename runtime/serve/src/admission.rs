//! What requests may take before they generate anything: memory for their bodies, time to send them, places in the queue, and the
//! processor for tokenizing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use futures_util::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::api::error::ApiError;

/// Requests that are parsed and tokenized at a time. Tokenizing takes a hundred times the memory of the text.
const TOKENIZING: usize = 2;
/// Bodies of the largest size that fit into memory at a time.
const LARGEST_BODIES: usize = 4;
/// Least memory for all bodies.
const MIN_BODIES_BYTES: usize = 64 << 20;

/// Permits to parse and tokenize. Servers of several models share them, as they share the machine's memory.
#[derive(Clone, Debug)]
pub(crate) struct Tokenizing(Arc<Semaphore>);

impl Default for Tokenizing {
    fn default() -> Tokenizing {
        Tokenizing(Arc::new(Semaphore::new(TOKENIZING)))
    }
}

/// The server's limits, shared by all requests.
pub(crate) struct Admission {
    max_body_bytes: usize,
    timeout: Duration,
    /// A permit for each byte.
    bodies: Arc<Semaphore>,
    tokenizing: Tokenizing,
    /// A permit for each choice that waits or runs.
    queue: Arc<Semaphore>,
    queue_places: usize,
}

/// The body of a request, within the memory that all of them share.
pub(crate) struct ReadBody {
    pub(crate) bytes: Vec<u8>,
    /// Its share of that memory.
    pub(crate) memory: OwnedSemaphorePermit,
}

/// A choice's place in the queue, which is free again when the value is dropped.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    since: Instant,
    _permit: OwnedSemaphorePermit,
}

/// Whether a request's client has disconnected: then its work ends at the next check.
#[derive(Clone, Default)]
pub(crate) struct ClientGone(Arc<AtomicBool>);

/// Sets [`ClientGone`] when it is dropped: hyper drops the response's future when the client disconnects.
struct Connected(ClientGone);

impl Admission {
    /// Limits for bodies of `max_body_bytes`, which clients have `timeout` to send, and for at most `queue_places` choices that
    /// wait or run.
    pub(crate) fn new(
        max_body_bytes: usize,
        timeout: Duration,
        queue_places: usize,
        tokenizing: Tokenizing,
    ) -> Admission {
        let bodies_bytes = max_body_bytes.saturating_mul(LARGEST_BODIES).max(MIN_BODIES_BYTES);
        Admission {
            max_body_bytes,
            timeout,
            bodies: Arc::new(Semaphore::new(bodies_bytes.min(Semaphore::MAX_PERMITS))),
            tokenizing,
            queue: Arc::new(Semaphore::new(queue_places)),
            queue_places,
        }
    }

    /// Receives the body of a request.
    ///
    /// # Errors
    /// For a body that is too long, too slow, or cut; and when other bodies fill the memory for them.
    pub(crate) async fn read_body(&self, request: Request) -> Result<ReadBody, ApiError> {
        let declared = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        if declared.is_some_and(|length: u64| length > self.max_body_bytes as u64) {
            return Err(self.too_long());
        }
        let slow = || {
            let message = format!("body: expected all of it within {} s", self.timeout.as_secs_f64());
            ApiError { status: StatusCode::REQUEST_TIMEOUT, ..ApiError::bad_request(message) }
        };
        timeout(self.timeout, self.receive(request.into_body())).await.map_err(|_| slow())?
    }

    async fn receive(&self, body: Body) -> Result<ReadBody, ApiError> {
        let full = || ApiError::busy(StatusCode::SERVICE_UNAVAILABLE, "body: memory for requests is taken by others");
        let mut bytes = Vec::new();
        let mut memory = self.bodies.clone().try_acquire_many_owned(0).map_err(|_| full())?;
        let mut chunks = body.into_data_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| ApiError::bad_request(format!("body: {error}")))?;
            if bytes.len() + chunk.len() > self.max_body_bytes {
                return Err(self.too_long());
            }
            memory.merge(self.bodies.clone().try_acquire_many_owned(chunk.len() as u32).map_err(|_| full())?);
            bytes.extend_from_slice(&chunk);
        }
        Ok(ReadBody { bytes, memory })
    }

    fn too_long(&self) -> ApiError {
        let message = format!("body: expected at most {} bytes, which hold a full context", self.max_body_bytes);
        ApiError { status: StatusCode::PAYLOAD_TOO_LARGE, ..ApiError::bad_request(message) }
    }

    /// Runs `work` on a thread of its own, two at a time. When the future is dropped, `work` does not begin, or its [`ClientGone`] is set.
    ///
    /// # Errors
    /// Errors of `work`, and status 500 if it panics.
    pub(crate) async fn tokenize<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ClientGone) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = self.tokenizing.0.clone().acquire_owned().await.expect("the semaphore is never closed");
        let gone = ClientGone::default();
        let _connected = Connected(gone.clone());
        let worked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work(&gone)
        });
        worked.await.unwrap_or_else(|_| Err(ApiError::failed("tokenizer or chat template of the artifact panicked")))
    }

    /// Places in the queue for all choices of a request.
    ///
    /// # Errors
    /// When there are fewer places.
    pub(crate) fn queue(&self, choices: usize) -> Result<Vec<QueuePlace>, ApiError> {
        if choices > self.queue_places {
            let message =
                format!("expected at most {}, for which the server has places, found {choices}", self.queue_places);
            return Err(ApiError::parameter("n", message));
        }
        let full =
            || ApiError::busy(StatusCode::TOO_MANY_REQUESTS, format!("queue of {} choices is full", self.queue_places));
        let mut places = self.queue.clone().try_acquire_many_owned(choices as u32).map_err(|_| full())?;
        Ok((0..choices).map(|_| QueuePlace::new(places.split(1).expect("a permit a choice"))).collect())
    }
}

impl QueuePlace {
    /// A place that is taken from now on.
    pub(crate) fn new(permit: OwnedSemaphorePermit) -> QueuePlace {
        QueuePlace { since: Instant::now(), _permit: permit }
    }

    /// Time for which it has been taken.
    pub(crate) fn taken_for(&self) -> Duration {
        self.since.elapsed()
    }
}

impl ClientGone {
    /// # Errors
    /// When the client has disconnected. The error is not sent.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        match self.is_gone() {
            true => Err(ApiError::bad_request("client disconnected")),
            false => Ok(()),
        }
    }

    fn is_gone(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn leave(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::Future;
    use std::sync::mpsc;

    use axum::body::Bytes;
    use futures_util::stream;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    async fn read(admission: &Admission, body: Body) -> Result<ReadBody, (u16, Option<u32>)> {
        let request = Request::new(body);
        admission.read_body(request).await.map_err(|error| (error.status.as_u16(), error.retry_after_s))
    }

    #[test]
    fn bodies_are_bounded_in_length_and_time() {
        let admission = Admission::new(10, SHORT, 1, Tokenizing::default());
        let pieces = |pieces: &'static [&'static str]| {
            Body::from_stream(
                stream::iter(pieces).map(|piece| Ok::<_, Infallible>(Bytes::from_static(piece.as_bytes()))),
            )
        };
        block_on(async {
            assert_eq!(read(&admission, pieces(&["01234", "56789"])).await.unwrap().bytes, b"0123456789");
            assert_eq!(read(&admission, pieces(&["01234", "567890"])).await.err(), Some((413, None)));
            assert_eq!(
                read(&admission, Body::from_stream(stream::pending::<Result<Bytes, Infallible>>())).await.err(),
                Some((408, None))
            );
            let mut declared = Request::new(Body::empty());
            declared.headers_mut().insert(CONTENT_LENGTH, "11".parse().unwrap());
            assert_eq!(admission.read_body(declared).await.err().unwrap().status, StatusCode::PAYLOAD_TOO_LARGE);
        });
    }

    #[test]
    fn bodies_share_a_memory_of_fixed_size() {
        let half = MIN_BODIES_BYTES / 2;
        let admission = Admission::new(half, SHORT, 1, Tokenizing::default());
        // Four of the largest fit, which is more than the least.
        block_on(async {
            let mut read_bodies = Vec::new();
            for _ in 0..LARGEST_BODIES {
                read_bodies.push(read(&admission, Body::from(vec![b' '; half])).await.unwrap());
            }
            assert_eq!(
                read(&admission, Body::from(" ")).await.err(),
                Some((503, Some(crate::api::error::RETRY_AFTER_S)))
            );
            drop(read_bodies.pop());
            assert!(read(&admission, Body::from(" ")).await.is_ok());
        });
    }

    #[test]
    fn a_full_queue_names_when_to_try_again() {
        let admission = Admission::new(1, SHORT, 3, Tokenizing::default());
        let mut places = admission.queue(2).unwrap();
        let refused = admission.queue(2).unwrap_err();
        assert_eq!((refused.status, refused.retry_after_s.is_some()), (StatusCode::TOO_MANY_REQUESTS, true));
        drop(places.pop());
        assert_eq!(admission.queue(2).unwrap().len(), 2);
        // More places than there will ever be.
        assert_eq!(admission.queue(4).unwrap_err().status, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn two_requests_of_all_servers_are_tokenized_at_a_time_and_a_panic_costs_one() {
        let tokenizing = Tokenizing::default();
        let servers = [(); 2].map(|()| Arc::new(Admission::new(1, SHORT, 1, tokenizing.clone())));
        let running = Arc::new(Semaphore::new(TOKENIZING));
        block_on(async {
            let work = |number: u32| {
                let (admission, running) = (servers[number as usize % 2].clone(), running.clone());
                tokio::spawn(async move {
                    let work = move |_: &ClientGone| {
                        let _running = running.try_acquire().expect("no more than two");
                        std::thread::sleep(SHORT);
                        assert!(number != 1, "the second request");
                        Ok(number)
                    };
                    admission.tokenize(work).await.map_err(|error| error.status.as_u16())
                })
            };
            let works: Vec<_> = (0..6).map(work).collect();
            for (number, work) in (0..).zip(works) {
                assert_eq!(work.await.unwrap(), if number == 1 { Err(500) } else { Ok(number) });
            }
        });
    }

    #[test]
    fn work_learns_that_its_client_has_gone() {
        let admission = Admission::new(1, SHORT, 1, Tokenizing::default());
        let (sender, ended) = mpsc::channel();
        block_on(async {
            let work = move |gone: &ClientGone| {
                while !gone.is_gone() {
                    std::thread::sleep(SHORT / 10);
                }
                sender.send(()).unwrap();
                gone.check()
            };
            assert!(timeout(SHORT, admission.tokenize(work)).await.is_err());
        });
        ended.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}
