"""Clients of running servers: llama.cpp, vLLM, others with OpenAI's routes."""
