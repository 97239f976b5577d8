//! A mail server that can delay its replies.

use chancery_mail::MailRoute;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(super) struct SlowMailServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// `false` while the server delays its replies.
    is_answering: Mutex<bool>,
    callers: AtomicUsize,
    emails: Mutex<Vec<String>>,
}

impl SlowMailServer {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let server = Arc::clone(&shared);
        std::thread::spawn(move || {
            for caller in listener.incoming() {
                let server = Arc::clone(&server);
                std::thread::spawn(move || server.serve(caller.unwrap()));
            }
        });
        Self { address, shared }
    }

    pub(super) fn route(&self) -> MailRoute {
        MailRoute::smtp(&format!("smtp://{}", self.address)).unwrap()
    }

    pub(super) fn resume(&self) {
        *self.shared.is_answering.lock().unwrap() = true;
    }

    pub(super) fn pause(&self) {
        *self.shared.is_answering.lock().unwrap() = false;
    }

    /// Number of emails that senders have started.
    pub(super) fn callers(&self) -> usize {
        self.shared.callers.load(Ordering::SeqCst)
    }

    /// Waits for an email that contains this text.
    pub(super) async fn wait_for_email(&self, text: &str) {
        while !self.shared.emails.lock().unwrap().iter().any(|email| email.contains(text)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Shared {
    /// A sender that has disconnected when the server replies has sent nothing.
    fn serve(&self, caller: TcpStream) {
        let mut say = caller.try_clone().unwrap();
        let mut lines = BufReader::new(caller).lines().map_while(Result::ok);
        if say.write_all(b"220 slow\r\n").is_err() {
            return;
        }
        while let Some(line) = lines.next() {
            let reply = match line.split(' ').next().unwrap_or_default() {
                "MAIL" => {
                    self.callers.fetch_add(1, Ordering::SeqCst);
                    while !*self.is_answering.lock().unwrap() {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    "250 yes\r\n"
                }
                "DATA" => {
                    say.write_all(b"354 go on\r\n").unwrap();
                    let email: Vec<String> = lines.by_ref().take_while(|line| line != ".").collect();
                    self.emails.lock().unwrap().push(email.join("\n"));
                    "250 taken\r\n"
                }
                _ => "250 yes\r\n",
            };
            if say.write_all(reply.as_bytes()).is_err() {
                return;
            }
        }
    }
}
