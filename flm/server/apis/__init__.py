"""The APIs that chats are asked for in: what a body means, and how its reply is worded."""
