"""The best draft length of a run: what is known of it, and what each length would bring."""
