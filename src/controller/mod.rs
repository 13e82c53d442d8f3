//! Observe (reads), plan (pure), apply (server-side apply), status. IO at the edge.
