"""The tabs of the page, and their parts: form, conversation, stream, viewer."""
