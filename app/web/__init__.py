"""The playground's web server: guards, routes beside Gradio's, the page."""
