"""The wire contract of retrieval: bodies of requests and answers, and the table of its routes. The gateway imports this
package of retrieval and no other; it imports nothing of Roundhouse but the error codes."""
