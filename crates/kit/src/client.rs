//! The layers around the client: count, fence, retry.
