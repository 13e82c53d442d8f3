//! What an error and its causes say, in one line. Pure.

use std::error::Error;

/// The error's message, then those of its causes. kube's own messages often stop at "client error (Connect)", and only the
/// causes say that a name could not be resolved or a certificate is not trusted. A cause that the text already
/// contains is left out.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    if let Some(kube::Error::Api(status)) = error.downcast_ref() {
        // The server's own words, without kube's wrapping.
        return status.message.clone();
    }
    let mut all = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !all.contains(&text) {
            all = format!("{all}: {text}");
        }
        next = cause.source();
    }
    all
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use k8s_openapi::api::core::v1::Pod;
    use kube::{Api, Client, Config};

    use super::*;

    async fn failure(url: &str) -> String {
        let mut config = Config::new(url.parse().unwrap());
        config.connect_timeout = Some(std::time::Duration::from_secs(2));
        let pods = Api::<Pod>::all(Client::try_from(config).unwrap());
        causes(&pods.get("a").await.unwrap_err())
    }

    #[tokio::test]
    async fn a_failed_connection_says_why() {
        // Nothing listens on port 1.
        let refused = failure("http://127.0.0.1:1").await;
        assert!(refused.contains("Connection refused"), "{refused}");
        assert_eq!(refused.matches("client error").count(), 1, "{refused}");
        let unknown = failure("http://no-such-host.invalid").await;
        assert!(unknown.contains("dns") || unknown.contains("lookup"), "{unknown}");
    }

    #[test]
    fn every_cause_is_shown_exactly_once() {
        let refused = anyhow!("connection refused");
        let connect = refused.context("cannot connect: connection refused");
        let error = connect.context("cannot list nodes");
        assert_eq!(causes(error.as_ref()), "cannot list nodes: cannot connect: connection refused");
        assert_eq!(causes(anyhow!("timed out").context("cannot list nodes").as_ref()), "cannot list nodes: timed out");
    }

    #[test]
    fn the_servers_message_is_not_wrapped() {
        let status = kube::core::Status::failure("pods is forbidden", "Forbidden").with_code(403);
        assert_eq!(causes(&kube::Error::Api(Box::new(status))), "pods is forbidden");
    }
}
