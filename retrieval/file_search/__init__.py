"""OpenAI's files and vector stores, on the same documents. `file_service` keeps files, `store_service` vector stores
with their files and batches, `views` builds what is answered. A vector store is a space of documents."""
