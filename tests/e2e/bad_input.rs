//! Invalid DraDriverConfigs: the API server rejects what it can check; the others are Stalled with a message that says what to
//! fix.

use dra_operator::api::DraDriverConfig;
use kube::{Api, core::DynamicObject};
use serde_json::{Value, json};

use super::support::{
    cluster::{CONFIG, Cluster, condition},
    eventually,
};

/// A valid object, changed in one place; null removes the field.
fn changed(path: &str, value: Value) -> Value {
    let mut config = json!({
        "apiVersion": "dra-operator.dev/v1alpha1", "kind": "DraDriverConfig", "metadata": {"name": "bad"},
        "spec": {
            "driver": {"cpu": {}}, "nodePlugin": {"updateStrategy": {}}, "health": {},
            "deviceClasses": [{"name": "a", "matchAttributes": [{"key": "cores", "operator": "Gte", "value": 4}]}],
        },
    });
    let (parent, key) = path.rsplit_once('/').unwrap();
    let parent = config.pointer_mut(parent).unwrap();
    if value.is_null() {
        parent.as_object_mut().unwrap().remove(key);
    } else {
        parent[key] = value;
    }
    config
}

/// The API server's answer to `kubectl create --dry-run=server`.
async fn answer(c: &Cluster, config: &Value) -> Result<DynamicObject, String> {
    let strict = "/apis/dra-operator.dev/v1alpha1/dradriverconfigs?dryRun=All&fieldValidation=Strict";
    let request = http::Request::post(strict).header("content-type", "application/json");
    let request = request.body(config.to_string().into_bytes()).unwrap();
    c.client.request(request).await.map_err(|error| match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    })
}

fn api(c: &Cluster) -> Api<DynamicObject> {
    Api::all_with(c.client.clone(), &kube::core::ApiResource::erase::<DraDriverConfig>(&()))
}

#[tokio::test]
async fn the_api_server_rejects_what_it_can_check_and_says_what_to_write() {
    let c = Cluster::with_operator("bad-input").await;
    let good = answer(&c, &changed("/metadata/name", json!("good"))).await.unwrap();
    assert_eq!(good.data["status"]["observedGeneration"], -1, "at birth");
    let class = "/spec/deviceClasses";
    let attribute = |value: Value| json!([{"name": "a", "matchAttributes": [value]}]);
    let table = [
        ("/spec/nodeplugin", json!({}), "unknown field \"spec.nodeplugin\""),
        ("/spec/driver/cpu/cores", json!(4), "unknown field \"spec.driver.cpu.cores\""),
        ("/metadata/name", json!("a.b"), "must be a DNS label"),
        ("/metadata/name", json!("a-name-of-more-than-forty-characters-is-long"), "at most 40 characters"),
        ("/spec/driver", json!(null), "spec.driver: Required value"),
        ("/spec/driver", json!({}), "must have exactly one kind, such as `cpu: {}`"),
        ("/spec/driver", json!({"cpu": {}, "memory": {}}), "must have exactly one kind"),
        ("/spec/driver", json!({"network": {}}), "only serves spec.driver.cpu"),
        ("/spec/driver/cpu/granularity", json!("core"), "supported values: \"Core\", \"Thread\""),
        ("/spec/driver/cpu/reservedCPUs", json!("0-"), "ascending ranges without spaces, such as 0-1,8"),
        ("/spec/driver/cpu/reservedCPUs", json!("3-1"), "ascending ranges without spaces, such as 0-1,8"),
        ("/spec/driver/cpu/reservedCPUs", json!("0,65536"), "CPU numbers up to 9999"),
        (
            "/spec/nodePlugin",
            json!({"cdiDir": "/run/both", "nriSocket": "/run/both/nri.sock"}),
            "must not be in spec.nodePlugin.cdiDir",
        ),
        ("/spec/nodePlugin/cdiDir", json!("/var/lib/kubelet/plugins_registry"), "must not be inside the kubelet's"),
        ("/spec/driverName", json!("DRA.CPU"), "must be a DNS subdomain of at most 63 characters"),
        ("/spec/driverName", json!("a".repeat(64)), "may not be more than 63"),
        ("/spec/nodePlugin/kubeletRootDir", json!("var/lib/kubelet"), "must be an absolute path"),
        ("/spec/nodePlugin/kubeletRootDir", json!("/var/../kubelet"), "must be an absolute path"),
        ("/spec/nodePlugin/cdiDir", json!("/var/run/cdi/"), "such as /var/run/cdi"),
        ("/spec/nodePlugin/nriSocket", json!("/nri.sock"), "such as /var/run/nri/nri.sock"),
        ("/spec/nodePlugin/image", json!("my image:1"), "an image reference without spaces"),
        ("/spec/nodePlugin/labels", json!({"app.kubernetes.io/name": "x"}), "must not set app.kubernetes.io/name"),
        ("/spec/nodePlugin/logLevel", json!("Loud"), "supported values: \"Error\""),
        ("/spec/nodePlugin/updateStrategy/maxUnavailable", json!(0), "from 1 or a percentage from 1% to 100%"),
        ("/spec/nodePlugin/updateStrategy/maxUnavailable", json!("half"), "from 1 or a percentage from 1% to 100%"),
        ("/spec/health/publishDeadline", json!("0s"), "such as 60s or 5m"),
        ("/spec/deletionPolicy", json!("Now"), "supported values: \"WaitForClaims\", \"Force\""),
        (class, json!([{"name": "", "preset": "Arm"}]), "must be a DNS subdomain"),
        (class, json!([{"name": "Fast", "preset": "Arm"}]), "such as high-performance"),
        (class, json!([{"name": "a"}]), "an empty policy would match every device"),
        (class, json!([{"name": "a", "preset": "Arm"}, {"name": "a", "preset": "Amd"}]), "Duplicate value"),
        (class, json!([{"name": "a", "preset": "Fast"}]), "supported values: \"HighPerformance\""),
        (class, json!([{"name": "a", "preset": "Arm", "extendedResourceName": "cpu"}]), "must be domain/name"),
        (
            class,
            json!([{"name": "a", "preset": "Arm", "extendedResourceName": "x.io/a"}, {"name": "b", "preset": "Amd", "extendedResourceName": "x.io/a"}]),
            "have the same extendedResourceName",
        ),
        (class, attribute(json!({"key": "cores", "operator": "Equals", "values": [4]})), "supported values: \"In\""),
        (class, attribute(json!({"key": "my cores", "operator": "Exists"})), "such as cores or cpu.intel.com/family"),
        (class, attribute(json!({"key": "cores", "operator": "In"})), "need a non-empty `values` list"),
        (
            class,
            attribute(json!({"key": "cores", "operator": "Exists", "value": 4})),
            "take neither `value` nor `values`",
        ),
        (class, attribute(json!({"key": "cores", "operator": "Gt", "values": [4]})), "need a `value`"),
        (class, attribute(json!({"key": "cores", "operator": "Gte", "value": "many"})), "compare numbers or versions"),
        (class, attribute(json!({"key": "cores", "operator": "In", "values": [true]})), "must be of type"),
        (
            class,
            json!([{"name": "a", "matchCapacity": [{"key": "cpu", "operator": "Gte", "value": "big"}]}]),
            "compares quantities: write `value: 16Gi`",
        ),
    ];
    for (path, value, wanted) in table {
        match answer(&c, &changed(path, value.clone())).await {
            Ok(_) => panic!("{path} = {value} was accepted"),
            Err(said) => assert!(said.contains(wanted), "{path} = {value}: {said}"),
        }
    }
}

#[tokio::test]
async fn what_claims_refer_to_cannot_change() {
    let c = Cluster::with_driver("bad-change").await;
    let mut spec = c.spec();
    spec["driverName"] = json!("other.cpu");
    let config = json!({
        "apiVersion": "dra-operator.dev/v1alpha1", "kind": "DraDriverConfig", "metadata": {"name": CONFIG}, "spec": spec,
    });
    let parameters = kube::api::PatchParams::apply("e2e").force();
    let refused = api(&c).patch(CONFIG, &parameters, &kube::api::Patch::Apply(config)).await.unwrap_err();
    assert!(refused.to_string().contains("delete this DraDriverConfig"), "{refused}");
}

/// Applies `spec` as the config `cpu` and waits until it is Stalled. Returns the reason and the message.
async fn stalled(c: &Cluster, spec: Value) -> (String, String) {
    c.apply_config(CONFIG, spec).await;
    let config = c
        .config_where(CONFIG, "is stalled", |config| condition(config, "Stalled").is_some_and(|(s, ..)| s == "True"))
        .await;
    let (_, reason, message) = condition(&config, "Stalled").unwrap();
    (reason.to_owned(), message.to_owned())
}

#[tokio::test]
async fn what_only_fails_when_an_object_is_created_stalls_the_config_with_the_servers_message() {
    let c = Cluster::with_driver("bad-made").await;
    let with = |path: &str, value: Value| {
        let mut spec = c.spec();
        let (parent, key) = path.rsplit_once('/').unwrap();
        spec.pointer_mut(parent).unwrap()[key] = value;
        spec
    };
    for (path, value, wanted_reason, wanted) in [
        (
            "/deviceClasses",
            json!([{"name": "raw", "selectors": ["device.model == \"A100\""]}]),
            "Refused",
            "undefined field 'model'",
        ),
        (
            "/deviceClasses",
            json!([{"name": "raw", "selectors": ["device.driver =="]}]),
            "Refused",
            "compilation failed",
        ),
        (
            "/deviceClasses",
            json!([{"name": "raw", "preset": "Arm", "selectors": ["true", "device.driver =="]}]),
            "Refused",
            "spec.deviceClasses[0].selectors[1]",
        ),
        (
            "/deviceClasses",
            json!([{"name": "raw", "preset": "Arm", "config": [{"opaque": {"driver": "x y", "parameters": {}}}]}]),
            "Refused",
            "opaque.driver",
        ),
        ("/nodePlugin/nodeSelector", json!({"pool": "not a label"}), "Refused", "nodeSelector"),
        ("/nodePlugin/tolerations", json!([{"key": "a", "operator": "Like"}]), "Refused", "operator"),
        (
            "/nodePlugin/resources",
            json!({"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}),
            "Refused",
            "must be less than or equal to memory limit",
        ),
    ] {
        let (reason, message) = stalled(&c, with(path, value.clone())).await;
        assert_eq!(reason, wanted_reason, "{path} = {value}: {message}");
        assert!(message.contains(wanted), "{path} = {value}: {message}");
        // What served before keeps serving, and the corrected object is ready again.
        assert!(!c.plugin_pods().await.is_empty());
        c.apply_config(CONFIG, c.spec()).await;
        c.config_is_ready(CONFIG).await;
    }
}

#[tokio::test]
async fn an_object_that_cannot_be_parsed_says_so_and_does_not_stop_others() {
    let c = Cluster::with_driver("bad-read").await;
    let mut spec = c.spec();
    spec["nodePlugin"]["affinity"] = json!({"nodeAffinty": {}});
    spec["nodePlugin"]["nodeSelector"] = json!({"no": "node"});
    let config = json!({
        "apiVersion": "dra-operator.dev/v1alpha1", "kind": "DraDriverConfig", "metadata": {"name": "unreadable"}, "spec": spec,
    });
    let parameters = kube::api::PatchParams::apply("e2e").force();
    api(&c).patch("unreadable", &parameters, &kube::api::Patch::Apply(config)).await.unwrap();
    eventually("the unreadable object is Stalled", || async {
        let conditions = api(&c).get("unreadable").await.unwrap().data["status"]["conditions"].take();
        let said = conditions.to_string();
        if said.contains("InvalidObject") && said.contains("spec.nodePlugin.affinity.nodeAffinty: unknown field") {
            Ok(())
        } else {
            Err(said)
        }
    })
    .await;
    let mut changed = c.spec();
    changed["nodePlugin"]["annotations"] = json!({"example.com/after": "unreadable"});
    c.apply_config(CONFIG, changed).await;
    c.config_is_ready(CONFIG).await;
    c.delete_and_wait(&api(&c), "unreadable").await;
}
