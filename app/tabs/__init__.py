"""The tabs of the page, one file each, and what they share: the form, the conversation, the stream."""
