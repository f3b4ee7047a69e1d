//! `/v1/rerank` of Jina and llama-server, `/rerank` of TEI: documents by how well they answer a query. `/score` of vLLM: how well each does.
//!
//! A language model ranks as Qwen3-Reranker does: the prompt is the question whether a document answers the query, and the score is
//! the probability of yes if only yes and no can follow (<https://huggingface.co/Qwen/Qwen3-Reranker-0.6B>).

use std::sync::Arc;

use axum::extract;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::{PoolingOutput, PoolingTask};
use crate::admission::ClientGone;
use crate::api::error::{ApiError, json_response};
use crate::api::fields::{BOOLEAN, Fields, unexpected};
use crate::api::prompt::Prompt;
use crate::handler::{AwaitedOutputs, RequestHandler, seconds_since_1970};
use crate::observer::{Observation, Operation};
use crate::options::LeftOut;
use crate::reply::new_id;

/// The tokens for the answers yes and no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct YesNoTokens {
    pub(crate) yes: u32,
    pub(crate) no: u32,
}

impl YesNoTokens {
    /// The probability of yes, if only yes and no can follow.
    pub(crate) fn score(self, logits: &[f32]) -> f32 {
        let [yes, no] = [self.yes, self.no].map(|token| f64::from(logits[token as usize]));
        (1.0 / (1.0 + (no - yes).exp())) as f32
    }
}

/// The system message that Qwen3-Reranker was trained with.
const SYSTEM: &str = "Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
                      Note that the answer can only be \"yes\" or \"no\".";
const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";

const DOCUMENTS: &str = "a list of texts, one at least";

/// What a request requires of its ranks.
struct Form {
    documents: Vec<String>,
    /// TEI's form, a plain list.
    is_list: bool,
    with_text: bool,
    top_n: usize,
}

impl RequestHandler {
    /// Answers a request that ranks documents.
    ///
    /// # Errors
    /// When the server was started without this, the request is wrong, or a step fails.
    pub(crate) async fn rerank(self: Arc<Self>, request: extract::Request) -> Result<Response, ApiError> {
        let observation = Observation::of(&request);
        observation.asks_for(Operation::Rerank);
        let model = self.model_name.clone();
        let (form, awaited) = self.with_body(request, RequestHandler::queue_ranks).await?;
        let n_tokens = awaited.n_tokens;
        Ok(json_response(StatusCode::OK, &form.answer(&model, scores(awaited, &observation).await?, n_tokens)))
    }

    /// Answers a request for the score of each pair of texts, in vLLM's form.
    ///
    /// # Errors
    /// As [`RequestHandler::rerank`].
    pub(crate) async fn score(self: Arc<Self>, request: extract::Request) -> Result<Response, ApiError> {
        let observation = Observation::of(&request);
        observation.asks_for(Operation::Rerank);
        let model = self.model_name.clone();
        let awaited = self.with_body(request, RequestHandler::queue_pairs).await?;
        let n_tokens = awaited.n_tokens;
        let scores = scores(awaited, &observation).await?.into_iter().enumerate();
        let data: Vec<Value> =
            scores.map(|(index, score)| json!({"index": index, "object": "score", "score": score})).collect();
        let usage = json!({"prompt_tokens": n_tokens, "total_tokens": n_tokens});
        let (id, created) = (new_id("score-"), seconds_since_1970());
        let answer =
            json!({"id": id, "object": "list", "created": created, "model": model, "data": data, "usage": usage});
        Ok(json_response(StatusCode::OK, &answer))
    }

    fn queue_ranks(&self, fields: Map<String, Value>, client: &ClientGone) -> Result<(Form, AwaitedOutputs), ApiError> {
        self.check_ranks()?;
        let mut fields = Fields(fields);
        let query: String = fields.require("query", "a text")?;
        let instruction = instruction(&mut fields)?;
        let form = form(&mut fields)?;
        let pairs: Vec<_> = form.documents.iter().map(|document| (query.as_str(), document.as_str())).collect();
        let awaited = self.queue_scores(&pairs, &instruction, "documents", client)?;
        Ok((form, awaited))
    }

    fn queue_pairs(&self, fields: Map<String, Value>, client: &ClientGone) -> Result<AwaitedOutputs, ApiError> {
        self.check_ranks()?;
        let mut fields = Fields(fields);
        let instruction = instruction(&mut fields)?;
        let (_, queries) = texts(&mut fields, ["text_1", "queries", "query"])?;
        let (name, documents) = texts(&mut fields, ["text_2", "documents", "items"])?;
        let pairs: Vec<(&str, &str)> = match queries.as_slice() {
            [query] => documents.iter().map(|document| (query.as_str(), document.as_str())).collect(),
            several if several.len() == documents.len() => {
                several.iter().zip(&documents).map(|(query, document)| (query.as_str(), document.as_str())).collect()
            }
            several => {
                let message =
                    format!("expected {} texts, one for each query, found {}", several.len(), documents.len());
                return Err(ApiError::parameter(name, message));
            }
        };
        self.queue_scores(&pairs, &instruction, name, client)
    }

    fn check_ranks(&self) -> Result<(), ApiError> {
        if self.options.reranking {
            return Ok(());
        }
        let how = (self.options.how_to_enable)(LeftOut::Reranking);
        Err(ApiError::disabled(&format!("rerank: this server ranks no documents{how}")))
    }

    /// Queues the question of each pair of a query and a document, which the request has as the parameter `name`.
    fn queue_scores(
        &self,
        pairs: &[(&str, &str)],
        instruction: &str,
        name: &str,
        client: &ClientGone,
    ) -> Result<AwaitedOutputs, ApiError> {
        let tokens = pairs.iter().map(|(query, document)| {
            let question = format!("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}");
            let text = self.question(&question)?;
            self.encoder.encode_plain(name, &Prompt::Text(text), client)
        });
        let answer = self.yes_and_no()?;
        self.pool(tokens, || PoolingTask::YesNo(answer))
    }

    /// The question in the model's own chat template, without thoughts; as plain text where there is none.
    fn question(&self, question: &str) -> Result<String, ApiError> {
        if self.encoder.template.is_none() {
            return Ok(format!("{SYSTEM}\n\n{question}\n\nAnswer: "));
        }
        let messages = json!([{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]);
        let chat = json!({"messages": messages, "chat_template_kwargs": {"enable_thinking": false}});
        let Value::Object(chat) = chat else { unreachable!("made above") };
        self.rendered(chat)
    }

    fn yes_and_no(&self) -> Result<YesNoTokens, ApiError> {
        let first = |word: &str| self.encoder.tokenizer.encode(word).ok()?.first().copied();
        match (first("yes"), first("no")) {
            (Some(yes), Some(no)) if yes != no => Ok(YesNoTokens { yes, no }),
            _ => Err(ApiError::bad_request("rerank: expected a model with tokens for yes and no")),
        }
    }
}

async fn scores(awaited: AwaitedOutputs, observation: &Observation) -> Result<Vec<f32>, ApiError> {
    let scores = awaited.all(observation).await?.into_iter().map(|found| match found {
        PoolingOutput::Score(score) => score,
        PoolingOutput::Rows(_) => unreachable!("the output is a score"),
    });
    Ok(scores.collect())
}

fn instruction(fields: &mut Fields) -> Result<String, ApiError> {
    Ok(fields.take("instruction", "a text")?.unwrap_or(INSTRUCTION.to_owned()))
}

/// One text or several by the first of these names that a request has, with the name.
fn texts<'n>(fields: &mut Fields, names: [&'n str; 3]) -> Result<(&'n str, Vec<String>), ApiError> {
    const TEXTS: &str = "a text or a list of texts, one at least";
    let name = names.into_iter().find(|name| fields.0.contains_key(*name)).unwrap_or(names[0]);
    let value: Value = fields.require(name, TEXTS)?;
    let texts: Option<Vec<String>> = match &value {
        Value::String(text) => Some(vec![text.clone()]),
        several => several.as_array().and_then(|all| all.iter().map(|text| Some(text.as_str()?.to_owned())).collect()),
    };
    let texts = texts.filter(|texts| !texts.is_empty()).ok_or_else(|| unexpected(name, TEXTS, &value))?;
    Ok((name, texts))
}

fn form(fields: &mut Fields) -> Result<Form, ApiError> {
    let (name, is_list) = if fields.0.contains_key("texts") { ("texts", true) } else { ("documents", false) };
    let documents: Vec<Value> = fields.require(name, DOCUMENTS)?;
    // Jina's clients may send objects.
    let text = |document: &Value| document.as_str().or_else(|| document.get("text")?.as_str()).map(str::to_owned);
    let documents: Option<Vec<String>> = documents.iter().map(text).collect();
    let Some(documents) = documents.filter(|documents| !documents.is_empty()) else {
        return Err(ApiError::parameter(name, format!("expected {DOCUMENTS}")));
    };
    let (return_text, return_documents): (Option<bool>, Option<bool>) =
        (fields.take("return_text", BOOLEAN)?, fields.take("return_documents", BOOLEAN)?);
    let top_n: Option<usize> = fields.take("top_n", "an integer")?;
    let with_text = return_text.or(return_documents).unwrap_or(false);
    Ok(Form { top_n: top_n.unwrap_or(documents.len()), documents, is_list, with_text })
}

impl Form {
    /// The answer with the best document first; among equals, the first one.
    fn answer(&self, model: &str, scores: Vec<f32>, n_tokens: usize) -> Value {
        let mut ranks: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
        ranks.sort_by(|one, other| other.1.total_cmp(&one.1));
        ranks.truncate(self.top_n);
        let entry = |(index, score): (usize, f32)| {
            let document = &self.documents[index];
            match (self.is_list, self.with_text) {
                (true, true) => json!({"index": index, "score": score, "text": document}),
                (true, false) => json!({"index": index, "score": score}),
                (false, true) => json!({"index": index, "relevance_score": score, "document": {"text": document}}),
                (false, false) => json!({"index": index, "relevance_score": score}),
            }
        };
        let results: Vec<Value> = ranks.into_iter().map(entry).collect();
        if self.is_list {
            return Value::Array(results);
        }
        let usage = json!({"prompt_tokens": n_tokens, "total_tokens": n_tokens});
        json!({"model": model, "object": "list", "usage": usage, "results": results})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_is_the_share_of_yes_among_both() {
        let answer = YesNoTokens { yes: 1, no: 2 };
        assert_eq!(answer.score(&[9.0, 3.0, 3.0]), 0.5);
        assert!((answer.score(&[9.0, 3f32.ln(), 0.0]) - 0.75).abs() < 1e-6);
        assert_eq!([answer.score(&[0.0, 200.0, -200.0]), answer.score(&[0.0, -200.0, 200.0])], [1.0, 0.0]);
    }

    #[test]
    fn documents_come_sorted_and_no_more_than_wanted() {
        let answer = |body: Value| {
            let form = form(&mut Fields(body.as_object().unwrap().clone())).map_err(|error| error.message)?;
            Ok::<Value, String>(form.answer("m", vec![0.25, 0.5, 0.25], 9))
        };
        let jina =
            answer(json!({"documents": ["a", {"text": "b"}, "c"], "top_n": 2, "return_documents": true})).unwrap();
        assert_eq!(
            jina["results"],
            json!([{"index": 1, "relevance_score": 0.5, "document": {"text": "b"}},
                   {"index": 0, "relevance_score": 0.25, "document": {"text": "a"}}])
        );
        assert_eq!(jina["usage"], json!({"prompt_tokens": 9, "total_tokens": 9}));
        let tei = answer(json!({"texts": ["a", "b", "c"]})).unwrap();
        assert_eq!(tei[0], json!({"index": 1, "score": 0.5}));
        assert_eq!(tei.as_array().unwrap().len(), 3);
        for wrong in [json!({}), json!({"documents": []}), json!({"documents": "a"}), json!({"documents": [1]})] {
            assert!(answer(wrong).is_err());
        }
    }
}
